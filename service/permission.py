"""What in a spec runs code of the caller's own, which not every role may."""

from collections.abc import Iterator

from pydantic import JsonValue

from service.spec import JobSpec
from service.sweeps.spec import SweepSpec, escaped
from trainers import FieldError

SECTIONS = ("code", "data", "model")
MESSAGE = "this is code of your own, which your role may not run; use a name that Millrace knows, or ask an admin"


def own_code(spec: JobSpec) -> list[FieldError]:
    """The fields through which a job would run the caller's own code on the cluster."""
    named = {"/code": spec.code is not None, "/data/name": ":" in spec.data.name, "/model/name": ":" in spec.model.name}
    return [FieldError(pointer=pointer, message=MESSAGE) for pointer, is_code in named.items() if is_code]


def own_code_of_sweep(spec: SweepSpec) -> list[FieldError]:
    """The same of all its trials: an axis may name code as well as the job."""
    found = [error.model_copy(update={"pointer": f"/job{error.pointer}"}) for error in own_code(spec.job)]
    for axis, values in spec.axes.items():
        section = axis.strip().partition(".")[0]
        if section in SECTIONS and (section == "code" or any(":" in text for text in _texts(list(values)))):
            found.append(FieldError(pointer=f"/axes/{escaped(axis)}", message=MESSAGE))
    return found


def _texts(value: JsonValue) -> Iterator[str]:
    """Every text in a value, however deep: more than are names of code, but never fewer."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
