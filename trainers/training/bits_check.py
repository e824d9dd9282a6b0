"""Whether a model gives the same bits wherever its virtual workers are computed, tried in ten steps: `millrace check`.

Two virtual workers train in one process, once more in another one, and each in a process of its own. After every step
all parameters and buffers are compared. Without Ray.
"""

import hashlib
import json
import multiprocessing
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from trainers import user_code
from trainers.algorithms.sync.config import SyncConfig
from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.errors import MillraceError, RunFailed, SpecRejected
from trainers.spec import TrainSpec
from trainers.spec.checkpoint import CheckpointSpec
from trainers.spec.elastic import ElasticSpec
from trainers.spec.evaluate import EvaluateSpec
from trainers.spec.workers import WorkersSpec
from trainers.training.loop import ModelVersion, Ports, TrainingLoop
from trainers.training.messages import GenerationStart
from trainers.training.setup import set_up
from trainers.training.step_gate import StepGate

STEPS = 10
VIRTUAL = 2

Digests = dict[str, str]
"""Parameters, and the buffers of each virtual worker, by name."""

UNREPEATABLE = (
    "The same process gives other bits each time it is started. Something is drawn from a generator that nothing seeds "
    "(numpy's, Python's, one of its own), depends on the clock, or has a kernel that is not deterministic. Draw from "
    "torch's own generator, which is seeded for each virtual worker; torch.use_deterministic_algorithms(True) in the "
    "model's constructor names such a kernel"
)
LEAVES_STATE = (
    "One virtual worker leaves something to the next one in the same process: a global variable, an attribute that is "
    "no buffer, or a generator of its own. Register what changes with register_buffer, and draw from torch's own "
    "generator, which is seeded for each virtual worker"
)


class BitsReport(BaseModel):
    """What came of it."""

    model_config = ConfigDict(frozen=True)

    same: bool
    steps: int
    """That were compared; where the bits differ, the number of the first step after which they do, from 1 on."""
    differs: str = ""
    """The first parameter that differs, or the first buffer with its virtual worker."""
    cause: str = ""
    """What it comes from, and what to do."""
    changed: tuple[str, ...] = ()
    """Attributes of the model or the task that changed while it trained, and are no buffers."""


def check_bits(spec: TrainSpec) -> BitsReport:
    """Train two virtual workers of a spec for ten steps on one and on two processes, with `algorithm: sync`.

    Raises:
        SpecRejected: The spec cannot be trained; or UserCodeFailed, DataNotFound.
        RunFailed: A process died.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-check-") as root:
        one, changed = _trained(spec, 1, Path(root, "one"))
        again, _ = _trained(spec, 1, Path(root, "again"))
        two, _ = _trained(spec, 2, Path(root, "two"))
    for other, cause in ((again, UNREPEATABLE), (two, LEAVES_STATE)):
        for step, (mine, theirs) in enumerate(zip(one, other, strict=True), start=1):
            for name, digest in mine.items():
                if theirs[name] != digest:
                    return BitsReport(same=False, steps=step, differs=name, cause=cause, changed=changed)
    return BitsReport(same=True, steps=len(one), changed=changed)


def _trained(spec: TrainSpec, processes: int, folder: Path) -> tuple[list[Digests], tuple[str, ...]]:
    """The digests after each step of a run on so many processes, and the attributes that changed."""
    folder.mkdir()
    spawn = multiprocessing.get_context("spawn")
    text = tried(spec, processes).model_dump_json()
    started = [spawn.Process(target=_work, args=(text, rank, processes, str(folder))) for rank in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    found = [_read(folder / f"{rank}.json", process.exitcode) for rank, process in enumerate(started)]
    return found[0]["steps"], tuple(found[0]["changed"])


def tried(spec: TrainSpec, processes: int) -> TrainSpec:
    """The same model, task, data and optimizer, trained by two virtual workers on so many processes."""
    changes = {
        "algorithm": SyncConfig(),
        "workers": WorkersSpec(count=processes, virtual=VIRTUAL, threads=spec.workers.threads, gpus=spec.workers.gpus),
        "evaluate": EvaluateSpec(every_steps=1),
        "checkpoint": CheckpointSpec(),
        "elastic": ElasticSpec(),
        "transport": "auto",
        "epochs": max(spec.epochs, STEPS),
    }
    return spec.model_copy(update=changes)


def _read(file: Path, status: int | None) -> dict[str, Any]:
    if not file.exists():
        raise RunFailed(f"a process of the check died with exit status {status}")
    found: dict[str, Any] = json.loads(file.read_text())
    if "error" in found:
        raise SpecRejected(found["error"])
    return found


def _work(text: str, rank: int, size: int, folder: str) -> None:
    """One process: trains, and leaves what it found in a file."""
    spec = TrainSpec.model_validate_json(text)
    try:
        with user_code.on_path(spec.code):
            found: dict[str, Any] = _steps(spec, rank, size, Path(folder))
    except MillraceError as error:
        found = {"error": str(error)}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def _steps(spec: TrainSpec, rank: int, size: int, folder: Path) -> dict[str, Any]:
    setup, steps = set_up(spec, None), list[Digests]()

    def keep(version: ModelVersion) -> None:
        named = setup.layout.named(version.whole.params)
        for virtual, buffers in version.buffers.items():
            named |= {f"{name} of virtual worker {virtual}": value for name, value in buffers.items()}
        steps.append({name: _digest(value) for name, value in named.items()})

    with setup.dataset:
        before = _attributes(setup.replica.model) | _attributes_of("task", setup.task)
        gate = StepGate()
        gate.release(STEPS)
        ports = Ports(lambda report: None, lambda dropped: None, keep, lambda clock: None)
        begin = GenerationStart(rank, SharedMemoryEndpoint(0, rank, size))
        loop = TrainingLoop(setup, folder, begin, gate, ports, None)
        end = loop.train()
        if end.lost:
            raise SpecRejected(end.lost)
        if loop.version is not None and len(steps) < loop.version.position.updates:
            keep(loop.version)
        after = _attributes(setup.replica.model) | _attributes_of("task", setup.task)
    changed = [name for name, digest in after.items() if name in before and before[name] != digest]
    return {"steps": steps, "changed": changed}


# -- what is compared -------------------------------------------------------------------------------------------------


def _digest(value: Tensor) -> str:
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(data.numpy().tobytes(), digest_size=16).hexdigest()


def _attributes(model: nn.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        found |= _attributes_of(name or type(model).__name__, module)
    return found


def _attributes_of(name: str, thing: object) -> dict[str, str]:
    """The state of the plain attributes and generators of an object."""
    return {f"{name}.{attribute}": state for attribute, value in vars(thing).items() for state in _state(value)}


def _state(value: Any) -> Iterator[str]:
    if isinstance(value, bool | int | float | str):
        yield repr(value)
    elif isinstance(value, Tensor):
        yield _digest(value)
    elif isinstance(value, np.ndarray):
        yield hashlib.blake2b(value.tobytes()).hexdigest()
    elif isinstance(value, torch.Generator):
        yield _digest(value.get_state())
    elif isinstance(value, np.random.Generator):
        yield repr(value.bit_generator.state)
    elif isinstance(value, random.Random):
        yield repr(value.getstate())
