"""The base class of all sections of a spec, and the short forms that a user may write."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo

from trainers.documented import Documented
from trainers.spelling import unknown


def shorthand(
    field: str, form: Any, kind: Any = str, default: str | Callable[[dict[str, Any]], str] = ""
) -> BeforeValidator:
    """Lets a scalar stand for a section in which only `field` is given.

    form, kind: the types of the section and of the scalar, for the JSON Schema.
    default: the value of `field` in a section that does not give it, or what finds it by the sections before this one.
    """

    def spell_out(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict):
            missing = {field: default(info.data) if callable(default) else default} if default else {}
            return missing | value
        return value if isinstance(value, BaseModel) else {field: value}

    return BeforeValidator(spell_out, json_schema_input_type=form | kind)


def known(names: tuple[str, ...], value: str, user_means: str) -> str:
    """The name, if it is known or a `module:function`; otherwise raises ValueError with similar names."""
    if value in names or ":" in value:
        return value
    module, _, name = value.rpartition(".")
    if module and all(part.isidentifier() for part in value.split(".")):
        raise ValueError(f"there is no {value!r}; did you mean {module}:{name}? {user_means} is named module:function")
    said = unknown(value, names)
    raise ValueError(f"{said}{'' if said.endswith('?') else ';'} {user_means} is named module:function")


class Section(Documented):
    """Base class of all sections of a spec: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
