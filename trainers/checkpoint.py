"""Checkpoints: safetensors and JSON in a folder that appears whole or not at all.

model.safetensors      parameters, and the mean of the batch-norm buffers, under their names in `state_dict`
optimizer.safetensors  `<state>/<parameter>`
buffers.safetensors    `<virtual rank>/<buffer>`, where the model has any
position.json          a `Position` and the spec
"""

import contextlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainers.errors import SpecRejected
from trainers.models.weights import load_weights, save_weights

Named = dict[str, Tensor]


@dataclass(frozen=True)
class Position:
    """How far the data has been trained."""

    epoch: int = 0
    """Epochs that are wholly trained."""
    step: int = 0
    """Synchronous steps of the epoch after these."""
    updates: int = 0
    examples: int = 0
    learning_rate: float = 0.0
    """Of the last update, 0 where there was none: momentum correction goes on from it."""
    applied: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """For each shard the pushes that it had applied: rows of epoch, group, first and last minibatch."""
    virtual: int = 0
    """Virtual workers of the steps from here on, where they follow the workers; 0: as in the spec."""
    first: int = 0
    """The minibatch of the epoch with which its step 0 would have begun, had all steps been of that size."""
    ramp_from: float = 0.0
    """What the learning rate was multiplied by when the number of virtual workers changed last; 0: it never did."""
    ramp_since: int = 0
    """Examples trained by then."""

    @property
    def within_epoch(self) -> bool:
        """Whether some examples of the epoch under way are trained already."""
        return self.step > 0 or any(row[0] >= self.epoch for rows in self.applied for row in rows)


@dataclass(frozen=True)
class Checkpoint:
    """Everything a run needs to go on as if nothing had happened."""

    position: Position
    spec: dict[str, Any]
    """The spec of the run that wrote it, as JSON."""
    model: Named
    optimizer: dict[str, Named] = field(default_factory=dict)
    """Name of a rule's state -> parameter -> tensor."""
    buffers: dict[int, Named] = field(default_factory=dict)
    """Virtual rank -> buffer -> tensor."""


def mean_buffers(buffers: dict[int, Named]) -> Named:
    """Their mean over virtual ranks, which evaluation uses."""
    if not buffers:
        return {}
    names = next(iter(buffers.values()))
    return {name: torch.stack([buffers[rank][name] for rank in sorted(buffers)]).mean(0) for name in names}


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Write to a folder beside, then rename: a kill at any moment leaves a whole checkpoint or none."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    save_weights(part / "model.safetensors", checkpoint.model | mean_buffers(checkpoint.buffers))
    state = {f"{s}/{name}": t for s, named in checkpoint.optimizer.items() for name, t in named.items()}
    save_weights(part / "optimizer.safetensors", state)
    if any(checkpoint.buffers.values()):
        rows = {f"{rank}/{name}": t for rank, named in checkpoint.buffers.items() for name, t in named.items()}
        save_weights(part / "buffers.safetensors", rows)
    (part / "position.json").write_text(json.dumps({"position": asdict(checkpoint.position), "spec": checkpoint.spec}))
    for file in part.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    _remove(folder)
    part.rename(folder)


def read_checkpoint(folder: Path) -> Checkpoint:
    """What `write_checkpoint` wrote.

    Raises:
        SpecRejected: There is none, or not a whole one.
    """
    try:
        found = json.loads((folder / "position.json").read_text())
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
    return Checkpoint(Position(**position), spec, load_weights(folder / "model.safetensors"), optimizer, buffers)


def prune(root: Path, keep_last: int, begin: str | None = None) -> None:
    """Remove all but the newest checkpoints of a run, and the one that it began from: who joins it begins there too."""
    found = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    for path in found[:-keep_last]:
        if begin is None or path.resolve() != Path(begin).resolve():
            _remove(path)
    for path in root.glob(".*.gone"):  # a removal was killed
        shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path) -> None:
    """Remove a checkpoint, if it is there. It disappears at once: nobody finds half of it."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
