"""The fields of a sweep's spec that run code of the caller's own, which not every role may do."""

from collections.abc import Iterator

from pydantic import JsonValue

from service.jobs.own_code import MESSAGE, NAMED, own_code
from service.sweeps.axis import listed
from service.sweeps.spec import SweepSpec, escaped
from trainers import FieldError

SECTIONS = ("code", "callbacks", *NAMED)


def own_code_of_sweep(spec: SweepSpec) -> list[FieldError]:
    """The fields through which any of its trials would: an axis may name code just as the job may."""
    found = [error.model_copy(update={"pointer": f"/job{error.pointer}"}) for error in own_code(spec.job)]
    for axis, values in spec.axes.items():
        texts = _texts([*listed(values)])
        section = axis.strip().partition(".")[0]
        if section in SECTIONS and (section == "code" or any(":" in text for text in texts)):
            found.append(FieldError(pointer=f"/axes/{escaped(axis)}", message=MESSAGE))
    return found


def _texts(value: JsonValue) -> Iterator[str]:
    """Every string in a value, however deep. Not each one is a name of code, but each name of code is among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
