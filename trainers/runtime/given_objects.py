"""Sends the objects that `train()` was given to the workers of its run, by value."""

import pickle
import tempfile
from pathlib import Path
from typing import Any

from trainers.errors import SpecRejected
from trainers.given import FILE, MODULE, SOURCE, is_called, is_given
from trainers.runtime.code_package import MOST_BYTES, megabytes
from trainers.spec import TrainSpec

Objects = dict[str, Any]
"""By the name that the spec has for them."""


def naming(spec: TrainSpec, **given: Any) -> tuple[TrainSpec, Objects]:
    """A spec that names what was given for its sections `task`, `model` and `data`, and the objects by these names.

    What the spec says of such a section besides its name stays. A section that follows from another one, as the model
    does from the task, is found anew.

    Raises:
        SpecRejected: An object is given with arguments that only a class or a function takes.
    """
    sections, objects = spec.model_dump(exclude_unset=True), Objects()
    for section, found in given.items():
        if found is None:
            continue
        kwargs = getattr(getattr(spec, section), "kwargs", {})
        if kwargs and not is_called(found):
            raise SpecRejected(f"{section}.kwargs: {section} is an object already; give its class, or leave them out")
        name = _name(found)
        if not name.isidentifier() or name in objects:
            name = section
        objects[name] = found
        before = sections.get(section)
        sections[section] = (before if isinstance(before, dict) else {}) | {"name": f"{MODULE}:{name}"}
    return type(spec).model_validate(sections), objects


def package(objects: Objects) -> list[str]:
    """The module of these objects, uploaded to Ray, which keeps it as long as the run has actors: those that start
    after a loss find it there too. Returns what stands for it in a runtime environment.

    Raises:
        SpecRejected: An object cannot be pickled, or they are too large.
    """
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed

    content = pickle.dumps({name: _pickled(name, found) for name, found in objects.items()})
    if len(content) > MOST_BYTES:
        raise SpecRejected(
            f"what train() was given has {megabytes(len(content))}, and what travels to the workers may be "
            f"{megabytes(MOST_BYTES)}; give a function that reads the data"
        )
    with tempfile.TemporaryDirectory(prefix="millrace-given-") as scratch:
        module = Path(scratch) / MODULE
        module.mkdir()
        (module / "__init__.py").write_text(SOURCE)
        (module / FILE).write_bytes(content)
        packed = upload_py_modules_if_needed({"py_modules": [str(module)]}, False, scratch_dir=scratch)
    return list(packed["py_modules"])


def given_names(spec: TrainSpec) -> list[str]:
    """What a spec names that `train()` was given."""
    return [one.name for one in (spec.task, spec.model, spec.data) if is_given(one.name)]


def _name(found: Any) -> str:
    return str(getattr(found, "__name__", type(found).__name__))


def _pickled(name: str, found: Any) -> bytes:
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(found))
    except Exception as error:  # whatever the object's own methods raise
        raise SpecRejected(
            f"{name} cannot be sent to the workers ({type(error).__name__}: {error}); make open files, locks and the "
            "like where they are used"
        ) from error
