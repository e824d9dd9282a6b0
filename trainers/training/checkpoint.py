"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

model.safetensors      parameters, and the buffers that evaluation uses, under their names in `state_dict`
optimizer.safetensors  `<state>/<parameter>`
buffers.safetensors    `<virtual rank>/<buffer>`, where the model has any
position.json          a `Position`, the spec, the choice of products, and the SHA-256 of each file, this one too
"""

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainers.disk import writing
from trainers.errors import DiskFull, SpecRejected
from trainers.models.module_buffers import Named
from trainers.models.products.choice import UNMEASURED, Choice
from trainers.models.weights import load_weights, save_weights
from trainers.training.position import Position

ABOUT = "position.json"


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on as if nothing had happened."""

    position: Position
    spec: dict[str, Any]
    """The spec of the run that wrote it, as JSON."""
    model: Named
    """Parameters and buffers under their names in `state_dict`."""
    optimizer: dict[str, Named] = field(default_factory=dict)
    """Name of a rule's state -> parameter -> tensor."""
    buffers: dict[int, Named] = field(default_factory=dict)
    """Virtual rank -> buffer -> tensor."""
    products: Choice = UNMEASURED
    """Which library made which product of the fully connected layers."""


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write to a folder beside, then rename: a kill at any moment leaves a whole checkpoint or none.

    Raises:
        DiskFull: There is no room for it; nothing of it is left.
    """
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with writing(folder):
            part.mkdir(parents=True)
            _write_files(part, checkpoint)
    except DiskFull as error:
        shutil.rmtree(part, ignore_errors=True)
        raise DiskFull(f"there is no room for the checkpoint {folder}") from error
    # One of this name may be there: a run that had gone back writes it again. It is deleted after the new one has its
    # place, since deleting takes so long that whoever ends this process would often leave neither.
    before = _set_aside(folder)
    part.rename(folder)
    shutil.rmtree(before, ignore_errors=True)


def _write_files(part: Path, checkpoint: Checkpoint) -> None:
    save_weights(part / "model.safetensors", checkpoint.model)
    state = {f"{s}/{name}": t for s, named in checkpoint.optimizer.items() for name, t in named.items()}
    save_weights(part / "optimizer.safetensors", state)
    if any(checkpoint.buffers.values()):
        rows = {f"{rank}/{name}": t for rank, named in checkpoint.buffers.items() for name, t in named.items()}
        save_weights(part / "buffers.safetensors", rows)
    about = {"position": asdict(checkpoint.position), "spec": checkpoint.spec, "products": asdict(checkpoint.products)}
    about["sha256"] = {file.name: _sha256(file) for file in sorted(part.iterdir())}
    (part / ABOUT).write_text(json.dumps(about | {"own_sha256": _own_sha256(about)}))
    for file in part.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def newest_whole(folder: Path) -> tuple[Path, list[str]]:
    """A checkpoint, or if it is damaged the newest one before it that is not.

    Returns:
        Its folder, and what is wrong with each that was passed over.

    Raises:
        SpecRejected: There is none.
    """
    damaged: list[str] = []
    for path in [folder, *reversed([path for path in _checkpoints(folder.parent) if path.name < folder.name])]:
        fault = damage(path)
        if fault is None:
            return path, damaged
        damaged.append(fault)
    if not (folder / ABOUT).exists():
        raise SpecRejected(f"checkpoint.resume: there is no checkpoint in {folder}")
    raise SpecRejected(f"checkpoint.resume: {damaged[0]}, and there is none before it; begin anew")


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None if all of it is as it was written."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        own = about.pop("own_sha256", None)
        if own is None:  # written before there were checksums
            return None
        if own != _own_sha256(about):
            return f"{folder / ABOUT} is not as it was written"
        for name, checksum in about["sha256"].items():
            if _sha256(folder / name) != checksum:
                return f"{folder / name} is not as it was written"
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{folder / ABOUT} cannot be read"
    return None


def read_checkpoint(folder: Path) -> Checkpoint:
    """What `write_checkpoint` wrote.

    Raises:
        SpecRejected: There is none.
    """
    try:
        found = json.loads((folder / ABOUT).read_text())
    except FileNotFoundError:
        raise SpecRejected(f"checkpoint.resume: there is no checkpoint in {folder}") from None
    position, spec = found["position"], found["spec"]
    position["applied"] = tuple(tuple(tuple(row) for row in shard) for shard in position["applied"])
    optimizer: dict[str, Named] = {}
    for key, tensor in load_weights(folder / "optimizer.safetensors").items():
        state, _, name = key.partition("/")
        optimizer.setdefault(state, {})[name] = tensor
    buffers: dict[int, Named] = {}
    if (folder / "buffers.safetensors").exists():
        for key, tensor in load_weights(folder / "buffers.safetensors").items():
            rank, _, name = key.partition("/")
            buffers.setdefault(int(rank), {})[name] = tensor
    model = load_weights(folder / "model.safetensors")
    return Checkpoint(Position(**position), spec, model, optimizer, buffers, _choice(found))


def products_of(folder: Path) -> Choice:
    """Which library made which product in the run that wrote a checkpoint; that of nothing where it does not say."""
    return _choice(json.loads((folder / ABOUT).read_text()))


def _choice(about: dict[str, Any]) -> Choice:
    found = about.get("products")
    if found is None:  # written before there was a choice
        return UNMEASURED
    return Choice(found["processor"], tuple(found["measured"]), tuple(found["onednn"]))


def prune(root: Path, keep_last: int, begin: str | None = None, written: str | None = None) -> None:
    """Remove all but the newest checkpoints of a run, and the one that it began from: who joins it begins there too.

    written: The name of the one that was just written. Those ahead of it are older: the run has gone back since.
    """
    found = _checkpoints(root)
    if written is not None:
        found.sort(key=lambda path: path.name <= written)
    for path in found[:-keep_last]:
        if begin is None or path.resolve() != Path(begin).resolve():
            _remove(path)
    for path in root.glob(".*.gone"):  # a removal was killed
        shutil.rmtree(path, ignore_errors=True)


def _checkpoints(root: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _own_sha256(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _remove(folder: Path) -> None:
    """Remove a checkpoint, if it is there. It disappears at once: nobody finds half of it."""
    shutil.rmtree(_set_aside(folder), ignore_errors=True)


def _set_aside(folder: Path) -> Path:
    """Give a checkpoint, if it is there, another name, under which nobody looks for it. Returns it."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    return gone
