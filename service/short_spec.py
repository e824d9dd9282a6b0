"""A spec as somebody would write it: what differs from the defaults, in the shortest form."""

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from service.spec import JobSpec


def short_spec(spec: JobSpec, dumped: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reading it gives the same spec. A section of which only the name differs is its name.

    dumped: The spec as JSON, where somebody has made that already.
    """
    return _differing(spec, spec.model_dump(mode="json") if dumped is None else dumped)


def _differing(section: BaseModel, dumped: dict[str, Any]) -> dict[str, Any]:
    """Of a section, as it is and as JSON. What is compared is JSON: dictionaries compare themselves."""
    found, (defaults, is_of_a_kind) = {}, _defaults(type(section))
    for name, value in dumped.items():
        if name in defaults and value == defaults[name] and not (is_of_a_kind and name == "name"):
            continue
        inner = getattr(section, name)
        if not isinstance(inner, BaseModel):
            found[name] = value
        elif short := _differing(inner, value):
            found[name] = short["name"] if short.keys() == {"name"} else short
    return found


@cache
def _defaults(kind: type[BaseModel]) -> tuple[dict[str, Any], bool]:
    """Field -> its default as JSON, and whether the section's name says of which kind it is."""
    fields = kind.model_fields
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    is_of_a_kind = "name" in fields and fields["name"].annotation is not str
    found = {name: value for name, value in defaults.items() if value is not PydanticUndefined}
    return to_jsonable_python(found), is_of_a_kind
