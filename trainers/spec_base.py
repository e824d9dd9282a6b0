"""What every part of a spec is made of: the root of its sections, and the short forms that a user may write."""

import difflib
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def shorthand(field: str, form: Any, kind: Any = str, default: str | None = None) -> BeforeValidator:
    """A scalar stands for a section in which only `field` is given; a section without its name is the default one.

    form, kind: the types of the section and of the scalar, for the JSON Schema.
    """

    def spell_out(value: Any) -> Any:
        if isinstance(value, dict):
            return {field: default, **value} if default and field not in value else value
        return value if isinstance(value, BaseModel) else {field: value}

    return BeforeValidator(spell_out, json_schema_input_type=form | kind)


def known(names: tuple[str, ...], value: str, user_means: str) -> str:
    """The name, if it stands for something; else ValueError with what comes near."""
    if value in names or ":" in value:
        return value
    near = ", ".join(difflib.get_close_matches(value, names)) or ", ".join(names[:8])
    raise ValueError(f"there is no {value!r}; did you mean {near}? {user_means} is named module:function")


class Section(BaseModel):
    """Root of all parts of a spec: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)
