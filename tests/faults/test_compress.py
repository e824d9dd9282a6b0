"""Compressed gradients between real processes: kills, resizes and a resume leave no trace in a run of `sync` or of
`diloco`, and of others each example counts once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.test_workers import (
    CODE,
    EXAMPLES,
    assert_equal,
    fault,
    has_trained,
    hurry,
    resize_and_kill,
    resized,
    spec,
    strike,
)
from tests.local_runs import LocalRun
from tests.runtime.runs import finished, start
from tests.runtime.runs import spec as small
from trainers import ClusterInfo, TrainSpec
from trainers.models.weights import load_weights
from trainers.optim.ema import EMA
from trainers.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.long

EPOCHS = 14

LOCAL = {"name": "parallel_sgd", "average_every": 1, "shuffle": "none"}


def compressed(plan: Path, count: int, pause_s: float = 0.01, **more: Any) -> TrainSpec:
    fields: dict[str, Any] = {
        "compress": {"top_k": 0.05},
        "workers": {"count": count, "virtual": 5},
        "epochs": EPOCHS,
        "checkpoint": {"every_epochs": 1},
    }
    return spec(plan, pause_s=pause_s, **fields | more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Parameters and average of one worker in this process, which nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CODE)
        found = read_checkpoint(LocalRun(compressed(folder / "plan", 1, pause_s=0), folder / "run").train())
    return found.model | {f"average of {name}": value for name, value in found.optimizer[EMA].items()}


@pytest.mark.parametrize("transport", ["auto", "process_group"])
def test_sync_has_its_bits_through_a_resize_a_kill_and_a_resume(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor], transport: str
) -> None:
    plan = tmp_path / "plan"
    first = start(f"compress-{transport}", compressed(plan, 3, transport=transport), tmp_path / "first")
    has_trained(first)
    first.run.scale(2)
    resized(first, 2)
    has_trained(first, 2 * EXAMPLES)  # past a checkpoint
    strike(plan, "kill")
    fault(first)
    resized(first, 2)
    has_trained(first)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    begin = {"every_epochs": 0, "resume": first.of("checkpoint")[-1]["path"]}
    hurry(plan)
    further = compressed(plan, 4, checkpoint=begin, transport=transport)
    second = finished(f"compress-{transport}-on", further, tmp_path / "second")
    assert second.events[-1].data["state"] == "SUCCEEDED", second.events[-1]
    average, params = (load_weights(second.folder / f"{name}.safetensors") for name in ("model", "raw"))
    averages = {name.removeprefix("average of "): one for name, one in undisturbed.items() if name not in params}
    assert averages
    assert_equal({name: average[name] for name in averages}, averages)
    assert_equal({name: params[name] for name in params}, {name: undisturbed[name] for name in params})


PARALLEL = {"name": "parallel_sgd", "average_every": 4}
STREAM = {"name": "diloco", "average_every": 4, "fragments": 2, "delay": 3}


@pytest.mark.parametrize(
    ("algorithm", "transport"),
    [(PARALLEL, "shared_memory"), (PARALLEL, "process_group"), (STREAM, "shared_memory"), (STREAM, "process_group")],
    ids=["parallel_sgd, memory", "parallel_sgd", "streaming, memory", "streaming"],
)
def test_local_steps_go_on_through_a_resize_and_a_kill(
    cluster: ClusterInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: dict[str, Any], transport: str
) -> None:
    """What virtual workers have kept moves with the resize, in the middle of a round too, where it is of an older one,
    and with sums under way; the kill takes it back to the last checkpoint. `diloco` has its bits then, which
    `parallel_sgd` does not have uncompressed either."""
    plan, fields = tmp_path / "plan", dict[str, Any](algorithm=algorithm, epochs=12)
    if algorithm is STREAM:
        fields["ema"] = None  # the outer parameters are none's update
    train = compressed(plan, 2, pause_s=0.1, transport=transport, **fields)
    watched = start(f"compress-{algorithm['name']}-{transport}", train, tmp_path / "run")
    resize_and_kill(watched, plan, epochs=12)
    if algorithm is PARALLEL:
        return
    monkeypatch.syspath_prepend(CODE)
    alone = LocalRun(compressed(tmp_path / "alone", 1, pause_s=0, **fields), tmp_path / "alone-run")
    found = load_weights(watched.folder / "model.safetensors")
    assert_equal(found, read_checkpoint(alone.train()).model)


@pytest.mark.parametrize(
    ("algorithm", "count"), [("downpour", 3), ({"name": "mixed", "group": 2}, 4)], ids=["downpour", "mixed"]
)
def test_asynchronous_workers_train_each_example_once_whatever_becomes_of_them(
    cluster: ClusterInfo, tmp_path: Path, algorithm: object, count: int
) -> None:
    """A worker is killed, some leave, and the run is paused in the middle of an epoch; it goes on with another number
    of workers, and so does a fork."""
    plan, more = tmp_path / "plan", {"algorithm": algorithm, "compress": "sign", "transport": "process_group"}
    train, name = compressed(plan, count, pause_s=0.06, workers=count, **more), f"compress-of-{count}"
    watched = start(name, train, tmp_path / "run")
    has_trained(watched)
    strike(plan, "kill")
    fault(watched)
    resized(watched, count)
    has_trained(watched)
    watched.run.scale(2)
    resized(watched, 2)
    has_trained(watched)
    watched.run.pause()
    watched.until(lambda event: event.data.get("state") == "PAUSED")
    hurry(plan)
    begin = {"every_epochs": 0, "resume": watched.of("checkpoint")[-1]["path"]}
    further = compressed(plan, 2, workers=2, checkpoint=begin, **more)
    for place in ("run", "fork"):
        ended = finished(f"{name}-{place}", further, tmp_path / place)
        assert ended.events[-1].data["state"] == "SUCCEEDED", ended.events[-1]
        audits = {audit["epoch"]: audit for audit in ended.of("epoch_audit")}
        assert all((one["trained"], one["lost"], one["duplicated"]) == (EXAMPLES, 0, 0) for one in audits.values())


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [("downpour", "pushed_bytes"), ("mixed", "pushed_bytes"), ("sync", "sent_bytes"), (LOCAL, "sent_bytes")],
    ids=["downpour", "mixed", "sync", "parallel_sgd"],
)
def test_a_runs_events_count_the_bytes_of_the_messages(
    cluster: ClusterInfo, tmp_path: Path, algorithm: object, what: str
) -> None:
    found = {}
    for name, compress in (("plain", None), ("sign", "sign")):
        rule = {"optimizer": {"name": "sgd", "lr": 0.02}} if algorithm is LOCAL else {}  # no state is averaged
        train = small(workers=2, algorithm=algorithm, transport="process_group", compress=compress, **rule)
        run = finished(f"{tmp_path.name}-{name}", train, tmp_path / name)
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        found[name] = sum(step[what] for step in run.of("step"))
    assert 0 < found["sign"] < 0.1 * found["plain"]
