"""What is a user's own and travels to every node: a folder with code, and the objects that `train()` was given."""

import logging
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trainers.errors import SpecRejected
from trainers.given import FILE, MODULE, RAY, SOURCE, given_name, is_called, is_given, refuse_given
from trainers.spec import TrainSpec

OURS = ("trainers", "service", "api", "deploy")
"""Our packages: plain names, which a user's folder must not hide."""

LEFT_OUT = ("/runs/", ".git/", "__pycache__/", ".*_cache/", "node_modules/")
"""What is no code, in the words of `.gitignore`. Files of that name, and `.rayignore`, name what else stays behind."""

SILENT = logging.getLogger(f"{__name__}.silent")
"""For what Ray would say besides the sentence that is raised."""
SILENT.disabled = True

MOST_BYTES = 100 * 2**20
"""The largest package. It travels to each node before a worker starts there, through the memory of Ray's head."""

Objects = dict[str, Any]
"""By the name that the spec has for them."""


def check_own(spec: TrainSpec, objects: Objects | None = None) -> None:
    """Look, without a cluster, whether a user's own can be sent. objects: What `train()` was given.

    Raises:
        SpecRejected: There is no such folder with code, it would hide Millrace's own packages, or it is too large; or
            the spec names an object that nobody gave.
    """
    for name in given_names(spec):
        if given_name(name) not in (objects or {}):
            raise refuse_given(name)
    if spec.code is not None:
        _sent(Path(spec.code))


def package_code(folder: Path) -> dict[str, Any]:
    """A runtime environment with `folder` as the working directory; the package is uploaded once.

    Raises:
        SpecRejected: There is no such folder, it would hide Millrace's own packages, or it is too large.
    """
    from ray._private.runtime_env.working_dir import upload_working_dir_if_needed

    left_out = _sent(folder)
    asked = {"working_dir": str(folder), "excludes": left_out}
    # Not in the current folder, Ray's default: where that is the user's, the package would grow by what it holds.
    with tempfile.TemporaryDirectory(prefix="millrace-code-") as scratch:
        packed: dict[str, Any] = upload_working_dir_if_needed(asked, include_gitignore=True, scratch_dir=scratch)
    return {"working_dir": packed["working_dir"]}


def naming(spec: TrainSpec, callbacks: Sequence[Any] = (), **given: Any) -> tuple[TrainSpec, Objects]:
    """A spec that names what was given for its sections `task`, `model` and `data`, and the objects by these names.
    Callbacks are named after those that the spec has.

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
        name = _free_name(found, section, objects)
        is_rays = _is_ray_dataset(found)
        objects[name] = _sent_ray_dataset(found) if is_rays else found
        before = sections.get(section)
        named = {"name": f"{RAY if is_rays else ''}{MODULE}:{name}"}
        sections[section] = (before if isinstance(before, dict) else {}) | named
    for number, found in enumerate(callbacks):
        name = _free_name(found, f"callback_{number}", objects)
        objects[name] = found
        sections["callbacks"] = [*sections.get("callbacks", ()), f"{MODULE}:{name}"]
    return type(spec).model_validate(sections), objects


def package_objects(objects: Objects) -> list[str]:
    """The module of these objects, uploaded to Ray, which keeps it as long as the run has actors: those that start
    after a loss find it there too. Returns what stands for it in a runtime environment.

    Raises:
        SpecRejected: An object cannot be pickled, or they are too large.
    """
    from ray._private.runtime_env.py_modules import upload_py_modules_if_needed

    content = pickle.dumps({name: _pickled(name, found) for name, found in objects.items()})
    if len(content) > MOST_BYTES:
        raise SpecRejected(
            f"what train() was given has {_megabytes(len(content))}, and what travels to the workers may be "
            f"{_megabytes(MOST_BYTES)}; give a function that reads the data"
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
    names = [spec.task.name, spec.model.name, spec.data.name, *(one.name for one in spec.callbacks)]
    return [name for name in names if is_given(name)]


def _sent(folder: Path) -> list[str]:
    """What of a folder that can be sent stays behind. Raises SpecRejected for one that cannot."""
    if not folder.is_dir():
        raise SpecRejected(f"code: there is no folder {folder}")
    for name in OURS:
        if (folder / name).exists() or (folder / f"{name}.py").exists():
            raise SpecRejected(f"code: {folder / name} would hide Millrace's own package `{name}`; rename it")
    left_out = [*LEFT_OUT, *_virtual_environments(folder)]
    _check_size(folder, left_out)
    return left_out


def _virtual_environments(folder: Path) -> list[str]:
    found = [path.parent for pattern in ("*/pyvenv.cfg", "*/*/pyvenv.cfg") for path in folder.glob(pattern)]
    return [f"/{path.relative_to(folder)}/" for path in found]


def _check_size(folder: Path, left_out: list[str]) -> None:
    """Raise SpecRejected, which names what is large, where the package would be too large, or contain itself."""
    from ray._private.runtime_env.packaging import _dir_travel, _get_excludes

    sizes = Counter[str]()  # by the name of the entry of `folder` that a file belongs to

    def count(path: Path) -> None:
        if path.is_symlink() and path.resolve() in (path.parent.resolve(), *path.parent.resolve().parents):
            raise SpecRejected(f"code: {path} is a link to a folder that it lies in; name it in {folder}/.rayignore")
        if path.is_file():
            sizes[path.relative_to(folder).parts[0]] += path.stat().st_size

    _dir_travel(folder, [_get_excludes(folder, left_out)], count, include_gitignore=True, logger=SILENT)
    if sizes.total() > MOST_BYTES:
        largest = ", ".join(f"{name} {_megabytes(size)}" for name, size in sizes.most_common(3))
        raise SpecRejected(
            f"code: {folder} holds {_megabytes(sizes.total())} ({largest}), and what travels to the workers may be "
            f"{_megabytes(MOST_BYTES)}; name what is no code in its .rayignore, or move the code to a folder of its own"
        )


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"


def _is_ray_dataset(found: Any) -> bool:
    """Whether it is one, without importing Ray Data."""
    return any(kind.__module__ == "ray.data.dataset" and kind.__name__ == "Dataset" for kind in type(found).__mro__)


def _sent_ray_dataset(dataset: Any) -> Callable[[str], Any]:
    """A function that makes a Ray Dataset anew where the run holds it: from what it is read from and how it is made of
    that, or, where it was made in memory, from its rows."""
    from ray import data, get

    if dataset.has_serializable_lineage():
        lineage = dataset.serialize_lineage()
        return lambda root: data.Dataset.deserialize_lineage(lineage)
    dataset.context.execution_options.preserve_order = True
    tables = get(dataset.to_arrow_refs())
    return lambda root: data.from_arrow(tables)


def _free_name(found: Any, otherwise: str, objects: Objects) -> str:
    """What an object is called in the module, where nothing else is."""
    name = str(getattr(found, "__name__", type(found).__name__))
    return name if name.isidentifier() and name not in objects else otherwise


def _pickled(name: str, found: Any) -> bytes:
    from ray import cloudpickle

    try:
        return bytes(cloudpickle.dumps(found))
    except Exception as error:  # whatever the object's own methods raise
        raise SpecRejected(
            f"{name} cannot be sent to the workers ({type(error).__name__}: {error}); make open files, locks and the "
            "like where they are used"
        ) from error
