"""The checkpoints of a run: lists them, opens their files, resumes from them, and gives them to other runs.

Their names come from outside. Each folder of a path is opened on its own and without following links, so that nothing
but a plain file in the run's own folder is ever read.
"""

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel

from service.errors import CheckpointNotFound, ModelNotFound, StorageFull
from service.storage.plain_file import NotPlain, open_plain
from trainers import TrainSpec

FOLDER = "checkpoints"
STEP = re.compile(r"^[0-9]{1,20}$")
FILE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
CHUNK_BYTES = 1 << 20
MODELS = {
    "model": "it is written when the run has trained everything, or stops because it is cancelled or paused",
    "best": "it is kept where the spec says checkpoint.keep_best, from the first evaluation on",
    "raw": "it is written at the end of a run whose spec has ema, of which model.safetensors is the average",
}
"""Name of a model -> when there is one."""


class CheckpointFile(BaseModel):
    """One file of a checkpoint."""

    name: str
    bytes: int


class CheckpointView(BaseModel):
    """One checkpoint."""

    step: str
    """Its name: the number of examples trained until then, as twelve digits."""
    examples: int
    epoch: int
    """The number of complete epochs."""
    written: float
    """Seconds since 1970."""
    files: list[CheckpointFile]


def checkpoints(run_dir: Path) -> list[CheckpointView]:
    """The checkpoints that a run has kept, oldest first."""
    found = []
    for path in _folders(run_dir):
        try:
            with opened(run_dir, path.name) as folder:
                names = sorted(name for name in os.listdir(folder) if FILE.match(name))
                files = [(name, os.stat(name, dir_fd=folder, follow_symlinks=False)) for name in names]
                written = os.fstat(folder).st_mtime
            position = json.loads((path / "position.json").read_text())["position"]
        except (CheckpointNotFound, OSError, ValueError, KeyError):  # it has just been replaced, or is no checkpoint
            continue
        plain = [CheckpointFile(name=name, bytes=one.st_size) for name, one in files if stat.S_ISREG(one.st_mode)]
        figures = {"examples": position["examples"], "epoch": position["epoch"], "written": written}
        found.append(CheckpointView(step=path.name, files=plain, **figures))
    return found


def open_file(run_dir: Path, step: str, name: str) -> BinaryIO:
    """Open a file of a checkpoint. Raises CheckpointNotFound, also for a link or a name that leads elsewhere."""
    if not FILE.match(name):
        raise CheckpointNotFound(f"{name!r} is no name of a checkpoint's file")
    with opened(run_dir, step) as folder:
        try:
            return open_plain(name, folder)
        except NotPlain:
            raise CheckpointNotFound(f"{name!r} is no plain file") from None
        except OSError:
            raise CheckpointNotFound(f"checkpoint {step} has no file {name!r}; the list shows what there is") from None


def open_model(run_dir: Path, which: str) -> BinaryIO:
    """Open a model that a run has left beside its checkpoints: `model`, `best` or `raw`. Raises ModelNotFound."""
    try:
        return open_plain(run_dir / f"{which}.safetensors")
    except NotPlain:
        raise ModelNotFound(f"{which}.safetensors is no plain file") from None
    except OSError:
        raise ModelNotFound(f"the job has no {which}.safetensors: {MODELS[which]}") from None


def chunks(file: BinaryIO) -> Iterator[bytes]:
    """The content of a file, in chunks. Closes the file."""
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def resuming(spec: TrainSpec, run_dir: Path) -> TrainSpec:
    """The spec, resuming from the newest checkpoint in the run's own folder, if there is one."""
    found = _folders(run_dir)
    if not found:
        return spec
    return spec.model_copy(update={"checkpoint": spec.checkpoint.model_copy(update={"resume": str(found[-1])})})


def give(run_dir: Path, step: str, to: Path) -> None:
    """Put a checkpoint into the folder of another run, which begins from it.

    The files never change, so they are linked if the file system allows it. Raises CheckpointNotFound or
    StorageFull; then nothing is left in `to`.
    """
    target = to / FOLDER / step
    try:
        with opened(run_dir, step) as folder:
            target.mkdir(parents=True)
            for name in os.listdir(folder):
                source = run_dir / FOLDER / step / name
                if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise CheckpointNotFound(f"{name!r} in checkpoint {step} is no plain file")
                try:
                    os.link(source, target / name, follow_symlinks=False)
                except FileNotFoundError:
                    raise
                except OSError:  # another file system, or one without links
                    shutil.copyfile(source, target / name, follow_symlinks=False)
        if not (target / "position.json").exists():
            raise CheckpointNotFound(f"checkpoint {step} is not whole")
    except BaseException as error:
        shutil.rmtree(to, ignore_errors=True)
        if isinstance(error, FileNotFoundError):
            raise CheckpointNotFound(f"checkpoint {step} has just been replaced by a newer one") from None
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(f"there is no room for checkpoint {step} in {to}: make room and try again") from None
        raise


def steps(run_dir: Path) -> list[str]:
    """The names of a run's checkpoints, oldest first."""
    return [path.name for path in _folders(run_dir)]


def _folders(run_dir: Path) -> list[Path]:
    root = run_dir / FOLDER
    if not root.is_dir() or root.is_symlink():
        return []
    return sorted(path for path in root.iterdir() if STEP.match(path.name) and not path.is_symlink() and path.is_dir())


@contextmanager
def opened(run_dir: Path, step: str) -> Iterator[int]:
    """A descriptor of a checkpoint's folder. Raises CheckpointNotFound, also for a link."""
    if not STEP.match(step):
        raise CheckpointNotFound(f"{step!r} is no checkpoint's name: it consists of digits")
    found: list[int] = []
    try:
        found.append(os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY))
        for name in (FOLDER, step):
            found.append(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=found[-1]))
    except OSError:
        _close(found)
        raise CheckpointNotFound(f"there is no checkpoint {step}; the list shows those that there are") from None
    try:
        yield found[-1]
    finally:
        _close(found)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
