"""The fields of a job's spec that run code of the caller's own, which not every role may do."""

from service.spec import JobSpec
from trainers import FieldError

NAMED = ("task", "data", "model")
"""The sections whose name may be one of code."""
MESSAGE = "this is code of your own, which your role may not run; use a name that Millrace knows, or ask an admin"


def own_code(spec: JobSpec) -> list[FieldError]:
    """The fields through which a job would run the caller's own code on the cluster."""
    named = {"/code": spec.code is not None}
    named |= {f"/{section}/name": _is_code(getattr(spec, section).name) for section in NAMED}
    named |= {f"/callbacks/{number}/name": True for number in range(len(spec.callbacks))}
    return [FieldError(pointer=pointer, message=MESSAGE) for pointer, is_code in named.items() if is_code]


def _is_code(name: str) -> bool:
    """Whether a name is `module:function`, also behind `ray:`; `hf:` is that of a library."""
    return ":" in name and not name.startswith("hf:")
