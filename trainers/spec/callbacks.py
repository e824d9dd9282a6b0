"""The section `callbacks` of a spec."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from trainers.section import Section, shorthand
from trainers.tasks.config import Argument


class CallbackSpec(Section):
    """Code of the user's own that follows the run."""

    name: str = Field(max_length=500)
    """A subclass of `trainers.Callback` as `module:Class`."""

    kwargs: dict[str, Argument] = Field(default={})
    """Arguments of its constructor."""

    on_error: Literal["fail", "drop"] = "fail"
    """What happens when it raises: the run fails with its frames, or the log tells them and the run goes on without."""

    @field_validator("name")
    @classmethod
    def _is_own(cls, name: str) -> str:
        module, _, found = name.partition(":")
        if not module or not found or module in ("hf", "ray"):
            raise ValueError(f"{name!r} names no class of your own; write module:Class")
        return name


Callbacks = tuple[Annotated[CallbackSpec, shorthand("name", CallbackSpec, str)], ...]
