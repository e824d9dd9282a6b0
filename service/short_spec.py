"""A spec as somebody would write it: what differs from the defaults, in the shortest form."""

from functools import cache
from typing import Any

from pydantic import BaseModel

from service.spec import JobSpec


def short_spec(spec: JobSpec, dumped: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reading it gives the same spec. A section of which only the name differs is its name.

    dumped: The spec as JSON, where somebody has made that already.
    """
    return _differing(spec, spec.model_dump(mode="json") if dumped is None else dumped)


def _differing(section: BaseModel, dumped: dict[str, Any]) -> dict[str, Any]:
    """Of a section, as it is and as JSON."""
    found = {}
    for name, (default, is_kind) in _defaults(type(section)).items():
        value = getattr(section, name)
        if not is_kind and value == default:
            continue
        short = _differing(value, dumped[name]) if isinstance(value, BaseModel) else dumped[name]
        if short == {} and isinstance(value, BaseModel):
            continue
        found[name] = short["name"] if isinstance(value, BaseModel) and short.keys() == {"name"} else short
    return found


@cache
def _defaults(kind: type[BaseModel]) -> dict[str, tuple[Any, bool]]:
    """Field -> its default, and whether it says which kind of section this is. To make a default anew for each
    comparison takes longer than all else here."""
    return {
        name: (field.get_default(call_default_factory=True), field.annotation is not str and name == "name")
        for name, field in kind.model_fields.items()
    }
