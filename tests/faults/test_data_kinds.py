"""Whatever the data come from: three kills, the coordinator's among them, and two resizes change no bit and no
count."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
import torch
import webdataset

from tests.arrow_rows import ArrowRows
from tests.faults.test_workers import CODE, fault, has_trained, hurry, resized, strike, trained_each_once
from tests.local_runs import LocalRun
from tests.runtime.runs import WITHIN_S, Watched, start
from trainers import ClusterInfo, TrainSpec, user_code
from trainers.given import Given
from trainers.models.weights import load_weights
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.code_package import naming
from trainers.training.checkpoint import read_checkpoint

datasets.disable_progress_bars()
NUM = 30
X, Y = np.random.default_rng(0).normal(size=(NUM, 3)).astype(np.float32), np.arange(NUM) % 3
EPOCHS = 40


def text(folder: Path) -> dict[str, Any]:
    (folder / "a.txt").write_text("the mill goes round " * 18)
    data = {"name": "text", "root": str(folder), "context": 10, "validation": 0.2}
    return {"task": "language_model", "model": "kinds:tokens", "data": data}


def table() -> pa.Table:
    return pa.table({"a": X[:, 0], "kind": [f"kind {i % 4}" for i in range(NUM)], "y": [f"class {i}" for i in Y]})


def csv(folder: Path) -> dict[str, Any]:
    rows = "\n".join(",".join(map(str, row.values())) for row in table().to_pylist())
    (folder / "t.csv").write_text(f"a,kind,y\n{rows}\n")
    return {"data": {"name": "csv", "root": str(folder / "t.csv"), "target": "y"}}


def parquet(folder: Path) -> dict[str, Any]:
    pq.write_table(table(), folder / "t.parquet")
    return {"data": {"name": "parquet", "root": str(folder / "t.parquet"), "target": "y"}}


def hf(folder: Path) -> dict[str, Any]:
    label = datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"x": datasets.List(datasets.Value("float32"), length=3), "label": label})
    datasets.Dataset.from_dict({"x": X, "label": Y}, features).save_to_disk(folder / "d")
    return {"data": {"name": f"hf:{folder / 'd'}", "loader_processes": 0}}


def shards(folder: Path) -> dict[str, Any]:
    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for i in range(10 * shard, 10 * shard + 10):
                writer.write({"__key__": f"{i}", "npy": X[i], "cls": int(Y[i])})
    return {"data": {"name": f"webdataset:{folder}", "loader_processes": 0}}


def rays(folder: Path) -> dict[str, Any]:
    """Three files, read and mapped by tasks that end in any order."""
    for part in range(3):
        rows = slice(10 * part, 10 * part + 10)
        pq.write_table(pa.table({"x": X[rows].tolist(), "y": Y[rows]}), folder / f"{part}.parquet")
    return {"data": {"name": "ray:kinds:rows", "root": str(folder), "target": "y"}}


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "text": text,
    "csv": csv,
    "parquet": parquet,
    "hf": hf,
    "webdataset": shards,
    "ray": rays,
}


def spec(folder: Path, kind: str, pause_s: float) -> TrainSpec:
    """Small enough that six of them train at once."""
    fields: dict[str, Any] = {
        "code": CODE, "model": "kinds:vectors", "workers": {"count": 2, "virtual": 3, "cpus": 0.25}, "batch": 2,
        "epochs": EPOCHS, "seed": 5, "evaluate": {"every_epochs": 0}, "report_every_s": 0.05,
        "checkpoint": {"every_epochs": 2 if kind == "ray" else 0},
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
        run = LocalRun(train, folder / "run", open_rows=lambda: [doubled])
        found = read_checkpoint(run.train())
    return run.setups[0].dataset.num_train, found.model


def through_it_all(watched: Watched, folder: Path) -> None:
    """A worker, the coordinator and another worker are killed, 2 -> 3 -> 1 workers; of a Ray Dataset its blocks are
    lost, too."""
    is_ray, plan = folder.name == "ray", folder / "plan"
    has_trained(watched, 6)
    held = holder(watched) if is_ray else None
    strike(plan, "kill")
    fault(watched)
    watched.run.scale(3)
    resized(watched, 3)
    has_trained(watched, 6)
    os.kill(watched.of("actors")[-1]["coordinator"]["pid"], signal.SIGKILL)
    watched.until(lambda event: event.data.get("state") == "RECOVERING")
    watched.until(lambda event: event.data.get("state") == "RUNNING")
    has_trained(watched, 6)
    if held is not None:
        assert holder(watched)._actor_id == held._actor_id  # executed once, whoever died
        lose(watched, held)  # the worker in the place of the next dead one looks for the blocks
    strike(plan, "kill")
    if held is None:
        fault(watched)
    else:  # of which a survivor may tell before anybody knows of the kill
        watched.until(lambda event: event.data.get("reason") == "DataLost")
        watched.until(lambda event: event.data.get("state") == "RUNNING")
    watched.run.scale(1)
    resized(watched, 1)
    hurry(plan)


def holder(watched: Watched) -> Any:
    """The actor that holds a Ray Dataset."""
    return ray.get_actor(f"{watched.run.job_id}/dataset", NAMESPACE)


def lose(watched: Watched, held: Any) -> None:
    """Kill it, and wait until Ray knows: until then a new worker may still be given the blocks."""
    ray.kill(held)
    deadline = time.monotonic() + WITHIN_S
    while is_held(watched):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_held(watched: Watched) -> bool:
    try:
        holder(watched)
    except ValueError:
        return False
    return True


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kinds", [["ray"], pytest.param(list(KINDS), marks=pytest.mark.slow, id="all")])
def test_each_example_once_and_the_same_bits_whatever_dies_and_joins(
    cluster: ClusterInfo, tmp_path: Path, kinds: list[str]
) -> None:
    runs: dict[str, Watched] = {}
    for kind in kinds:
        (tmp_path / kind).mkdir()
        runs[kind] = start(f"kinds-{len(kinds)}-{kind}", spec(tmp_path / kind, kind, 1.0), tmp_path / kind / "run")
    with ThreadPoolExecutor(len(kinds)) as threads:
        ends = [threads.submit(through_it_all, runs[kind], tmp_path / kind) for kind in kinds]
        wanted = {kind: undisturbed(tmp_path / f"{kind}-local", kind) for kind in kinds}  # meanwhile
        for end in ends:
            end.result()
    for kind, (num, model) in wanted.items():
        trained_each_once(runs[kind], EPOCHS, num)
        found = load_weights(runs[kind].folder / "model.safetensors")
        for name, value in model.items():
            assert torch.equal(found[name], value), f"{kind}: {name}"


@pytest.mark.slow
def test_a_ray_dataset_that_gives_other_rows_when_it_is_executed_anew_ends_the_run(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    train = spec(tmp_path, "ray", 0.1).model_dump()
    train["data"] |= {"name": "ray:kinds:unseeded"}
    train |= {"workers": {"count": 1, "virtual": 1, "cpus": 0.25}, "checkpoint": {"every_epochs": 1}}
    watched = start("kinds-unseeded", TrainSpec.model_validate(train), tmp_path / "ray")
    watched.until(lambda event: event.type == "checkpoint")
    lose(watched, holder(watched))
    strike(tmp_path / "plan", "kill")  # the next worker looks for the blocks
    end = watched.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "DataChanged")
    assert "Give random_shuffle and whatever else draws in the Dataset a seed" in end["message"]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray Data's own settings
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_dataset_of_a_notebook_is_named_and_made_anew(cluster: ClusterInfo, tmp_path: Path, in_memory: bool) -> None:
    rows = [{"x": i, "y": str(i)} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    dataset = ray.data.from_items(rows) if in_memory else ray.data.read_parquet(str(tmp_path))
    named, objects = naming(TrainSpec.model_validate({"data": {"target": "y"}}), data=dataset)
    (name,) = objects
    assert (named.data.name, named.data.target, named.data.kind) == (f"ray:given_to_train:{name}", "y", "ray")
    made = Given(ray.cloudpickle.dumps(objects[name]))(root="data")
    assert isinstance(made, ray.data.Dataset)
    assert made.schema().names == ["x", "y"]
    assert not in_memory or made.count() == 5  # without an execution
