"""What a fork trains, with clipped gradients and an average: with its parent's recipe, and with another."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.database.job_store import Job
from service.jobs.fork import forked_spec
from service.spec import JobSpec, parse_spec
from service.storage.checkpoints import CheckpointView
from tests.local_runs import LocalRun
from trainers.optim.ema import EMA
from trainers.training.checkpoint import Checkpoint, read_checkpoint

SPEC = {
    "data": {"name": "digits", "limit": 40}, "model": "lenet5", "epochs": 1, "batch": {"per_worker": 7},
    "workers": {"count": 2, "virtual": 3}, "optimizer": {"name": "momentum", "lr": 0.1},
    "clip": {"norm": 0.05}, "ema": {"decay": 0.6},
}  # fmt: skip


def trained(spec: JobSpec, folder: Path, resume: Path | None = None) -> Checkpoint:
    begin = spec.checkpoint.model_copy(update={"resume": resume and str(resume)})
    return read_checkpoint(LocalRun(spec.model_copy(update={"checkpoint": begin}), folder).train())


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], value) for name, value in other.items())


def test_a_fork_goes_on_with_clip_and_average_or_with_others(tmp_path: Path) -> None:
    parent = Job.model_construct(id="parent", spec=parse_spec(SPEC).model_dump(mode="json"))
    begin = CheckpointView(step="40", examples=40, epoch=1, written=0.0, files=[])
    trained(parse_spec(SPEC), tmp_path / "parent")

    def forked(name: str, **changes: Any) -> Checkpoint:
        spec = forked_spec(parent, {"epochs": 2, **changes}, begin)
        return trained(spec, tmp_path / name, tmp_path / "parent" / "checkpoint")

    undisturbed = trained(parse_spec(SPEC | {"epochs": 2}), tmp_path / "whole")
    kept = forked("kept", workers={"count": 3})
    assert same(kept.model, undisturbed.model)
    assert same(kept.optimizer[EMA], undisturbed.optimizer[EMA])
    slower = forked("slower", ema={"decay": 0.9})
    assert same(slower.model, kept.model)  # an average follows, and leads nothing
    assert not same(slower.optimizer[EMA], kept.optimizer[EMA])
    without = forked("without", ema=None)
    assert same(without.model, kept.model)
    assert EMA not in without.optimizer
    by_value = forked("by value", clip={"norm": None, "value": 0.001})
    assert not same(by_value.model, kept.model)
