"""A spec as somebody would write it: what differs from the defaults, in the shortest form."""

from typing import Any

from pydantic import BaseModel

from service.spec import JobSpec


def short_spec(spec: JobSpec) -> dict[str, Any]:
    """Reading it gives the same spec. A section of which only the name differs is its name."""
    return _differing(spec, spec.model_dump(mode="json"))


def _differing(section: BaseModel, dumped: dict[str, Any]) -> dict[str, Any]:
    """Of a section, as it is and as JSON."""
    found = {}
    for name, field in type(section).model_fields.items():
        value, is_kind = getattr(section, name), field.annotation is not str and name == "name"
        if not is_kind and value == field.get_default(call_default_factory=True):
            continue
        short = _differing(value, dumped[name]) if isinstance(value, BaseModel) else dumped[name]
        if short == {} and isinstance(value, BaseModel):
            continue
        found[name] = short["name"] if isinstance(value, BaseModel) and short.keys() == {"name"} else short
    return found
