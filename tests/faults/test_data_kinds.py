"""Whatever the data come from: a kill, a resize down and up and the coordinator's death change no bit and no count."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
import torch

from tests.arrow_rows import ArrowRows
from tests.faults.test_workers import CODE, ended_well, fault, has_trained, hurry, resized, strike
from tests.local_runs import LocalRun
from tests.runtime.runs import Watched, gone_soon, start
from trainers import ClusterInfo, Event, TrainSpec, train, user_code
from trainers.models.weights import load_weights
from trainers.runtime.cluster import NAMESPACE
from trainers.spec.checkpoint import CheckpointSpec
from trainers.training.checkpoint import read_checkpoint

NUM = 30
X, Y = np.random.default_rng(0).normal(size=(NUM, 3)).astype(np.float32), np.arange(NUM) % 3
EPOCHS = 40


def rays(folder: Path) -> dict[str, Any]:
    """Three files, read and mapped by tasks that end in any order."""
    for part in range(3):
        rows = slice(10 * part, 10 * part + 10)
        pq.write_table(pa.table({"x": X[rows].tolist(), "y": Y[rows]}), folder / f"{part}.parquet")
    return {"data": {"name": "ray:kinds:rows", "root": str(folder), "target": "y"}}


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "ray": rays,
}


def spec(folder: Path, kind: str, pause_s: float) -> TrainSpec:
    """Small enough that six of them train at once."""
    fields: dict[str, Any] = {
        "code": CODE, "model": "kinds:vectors", "workers": {"count": 3, "virtual": 3, "cpus": 0.25}, "batch": 2,
        "epochs": EPOCHS, "seed": 5, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
        "report_every_s": 0.05,
    }  # fmt: skip
    for name in ("data", "plan"):
        (folder / name).mkdir()
    fields |= KINDS[kind](folder / "data")
    fields["model"] = {"name": fields["model"], "kwargs": {"plan": str(folder / "plan"), "pause_s": pause_s}}
    return TrainSpec.model_validate(fields)


def undisturbed(folder: Path, kind: str) -> tuple[int, dict[str, torch.Tensor]]:
    """Examples an epoch and the model, of one process without Ray."""
    folder.mkdir()
    doubled = ArrowRows(pa.table({"x": (2 * X).tolist(), "y": Y}))
    with user_code.on_path(CODE):
        train = spec(folder, kind, pause_s=0)
        run = LocalRun(train, folder / "run", open_rows=lambda: (doubled, None))
        found = read_checkpoint(run.train())
    return run.setups[0].dataset.num_train, found.model


def kill_coordinator(watched: Watched) -> None:
    os.kill(watched.of("actors")[-1]["coordinator"]["pid"], signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_example_once_and_the_same_bits_whatever_dies_and_joins(cluster: ClusterInfo, tmp_path: Path) -> None:
    runs: dict[str, Watched] = {}
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        runs[kind] = start(f"kinds-{kind}", spec(tmp_path / kind, kind, pause_s=1.0), tmp_path / kind / "run")
    wanted = {kind: undisturbed(tmp_path / f"{kind}-local", kind) for kind in KINDS}  # meanwhile

    def each(act: Callable[[Watched], object]) -> None:
        for watched in runs.values():
            act(watched)

    each(lambda watched: has_trained(watched, 6))
    held = ray.get_actor("kinds-ray/dataset", NAMESPACE)._actor_id
    for kind in KINDS:
        strike(tmp_path / kind / "plan", "kill")
    each(fault)
    each(lambda watched: resized(watched, 3))
    each(lambda watched: watched.run.scale(2))
    each(lambda watched: resized(watched, 2))
    each(kill_coordinator)
    each(lambda watched: watched.until(lambda event: event.data.get("state") == "RECOVERING"))
    each(lambda watched: watched.until(lambda event: event.data.get("state") == "RUNNING"))
    each(lambda watched: watched.run.scale(3))
    each(lambda watched: resized(watched, 3))
    assert ray.get_actor("kinds-ray/dataset", NAMESPACE)._actor_id == held  # executed once, though all else died
    for kind in KINDS:
        hurry(tmp_path / kind / "plan")
    for kind, (num, model) in wanted.items():
        found = ended_well(runs[kind], EPOCHS, num)
        for name, value in model.items():
            assert torch.equal(found[name], value), f"{kind}: {name}"


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
def test_a_dataset_of_a_notebook_that_is_lost_is_made_again(cluster: ClusterInfo, tmp_path: Path) -> None:
    num, wanted = undisturbed(tmp_path / "local", "ray")
    happened: list[Event] = []

    def lose(event: Event) -> None:
        """Once there is a checkpoint, kill who holds the blocks, and a worker, whose successor looks for them."""
        if event.type == "checkpoint" and not any(e.type == "checkpoint" for e in happened):
            actors = next(e.data for e in happened if e.type == "actors")
            job_id = actors["coordinator"]["name"].partition("/")[0]
            ray.kill(ray.get_actor(f"{job_id}/dataset", NAMESPACE))
            os.kill(actors["workers"][1]["pid"], signal.SIGKILL)
        if event.data.get("reason") == "DataLost":
            hurry(tmp_path / "plan")
        happened.append(event)

    here = spec(tmp_path, "ray", pause_s=0.3).model_copy(update={"checkpoint": CheckpointSpec(every_epochs=2)})
    rows = ray.data.from_items([{"x": 2 * x, "y": int(y)} for x, y in zip(X, Y, strict=True)])
    result = train(here, tmp_path / "run", lose, data=rows)
    assert (result.state, result.examples) == ("SUCCEEDED", EPOCHS * num)
    assert "DataLost" in [event.data.get("reason") for event in happened]
    found = load_weights(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    gone_soon(result.job_id, [])
