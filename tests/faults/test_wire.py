"""Gradients that travel as bfloat16 between real processes: kills, resizes and a resume leave no trace, and the bytes
are counted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.test_workers import (
    CODE,
    EXAMPLES,
    FORMS,
    assert_equal,
    fault,
    has_trained,
    hurry,
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


def halved(plan: Path, count: int, pause_s: float = 0.01, **more: Any) -> TrainSpec:
    fields: dict[str, Any] = {"wire": "bfloat16", "workers": {"count": count, "virtual": 5}, "epochs": EPOCHS}
    return spec(plan, pause_s=pause_s, **fields | more)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Parameters and average of one worker in this process, which nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CODE)
        found, plain = (
            read_checkpoint(LocalRun(halved(folder / "plan", 1, pause_s=0, wire=wire), folder / wire).train())
            for wire in ("bfloat16", "float32")
        )
    assert any(not torch.equal(plain.model[name], value) for name, value in found.model.items())
    return found.model | {f"average of {name}": value for name, value in found.optimizer[EMA].items()}


@pytest.mark.parametrize("form", FORMS)
def test_sync_has_its_bits_through_a_resize_a_kill_and_a_resume(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor], form: str
) -> None:
    plan = tmp_path / "plan"
    first = start(f"wire-{form}", halved(plan, 3, **FORMS[form]), tmp_path / "first")
    has_trained(first)
    first.run.scale(2)
    resized(first, 2)
    has_trained(first)
    strike(plan, "kill")
    fault(first)
    resized(first, 2)
    has_trained(first)
    first.run.cancel()
    assert first.end().data["state"] == "CANCELLED"
    begin = {"every_epochs": 0, "resume": first.of("checkpoint")[-1]["path"]}
    hurry(plan)
    second = finished(f"wire-{form}-on", halved(plan, 4, checkpoint=begin, **FORMS[form]), tmp_path / "second")
    assert second.events[-1].data["state"] == "SUCCEEDED", second.events[-1]
    average, params = (load_weights(second.folder / f"{name}.safetensors") for name in ("model", "raw"))
    averages = {name.removeprefix("average of "): one for name, one in undisturbed.items() if name not in params}
    assert averages
    assert_equal({name: average[name] for name in averages}, averages)
    assert_equal({name: params[name] for name in params}, {name: undisturbed[name] for name in params})


BACKUP = {"name": "sync", "form": "parameter_server", "backup": 1}


@pytest.mark.parametrize(
    ("algorithm", "fewer"),
    [({"name": "downpour"}, 3), ({"name": "mixed", "group": 2}, 2), (BACKUP, 3)],
    ids=["downpour", "mixed", "backup"],
)
def test_asynchronous_workers_train_each_example_once_whatever_becomes_of_them(
    cluster: ClusterInfo, tmp_path: Path, algorithm: dict[str, Any], fewer: int
) -> None:
    """A worker is killed, some leave, and the run is paused in the middle of an epoch; it goes on with another number
    of workers, and so does a fork."""
    plan, name = tmp_path / "plan", f"wire-{algorithm['name']}-{len(algorithm)}"
    train = halved(plan, 4, pause_s=0.06, algorithm=algorithm, workers=4, clip={"value": 0.02})
    watched = start(name, train, tmp_path / "run")
    has_trained(watched)
    strike(plan, "kill")
    fault(watched)
    resized(watched, 4)
    has_trained(watched)
    watched.run.scale(fewer)
    resized(watched, fewer)
    has_trained(watched)
    watched.run.pause()
    watched.until(lambda event: event.data.get("state") == "PAUSED")
    hurry(plan)
    begin = {"every_epochs": 0, "resume": watched.of("checkpoint")[-1]["path"]}
    further = halved(plan, fewer, algorithm=algorithm, workers=fewer, clip={"value": 0.02}, checkpoint=begin)
    again, fork = (finished(f"{name}-{place}", further, tmp_path / place) for place in ("run", "fork"))
    for ended in (again, fork):
        assert ended.events[-1].data["state"] == "SUCCEEDED", ended.events[-1]
        audits = {audit["epoch"]: audit for audit in ended.of("epoch_audit")}
        assert all((one["trained"], one["lost"], one["duplicated"]) == (EXAMPLES, 0, 0) for one in audits.values())
    assert len({audit["epoch"] for audit in again.of("epoch_audit")}) == EPOCHS


SHARDS = {"name": "sync", "form": "parameter_server"}


def counted(folder: Path, algorithm: dict[str, Any], what: str) -> dict[str, int]:
    """Bytes by the wire, as the events of two runs that nobody disturbs have them."""
    found = {}
    for wire in ("float32", "bfloat16"):
        train = small(workers=2, algorithm=algorithm, transport="process_group", wire=wire)
        run = finished(f"{folder.name}-{wire}", train, folder / wire)
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        found[wire] = sum(step[what] for step in run.of("step"))
    return found


@pytest.mark.parametrize(
    "algorithm", [SHARDS, {"name": "downpour"}, {"name": "mixed", "group": 2}], ids=["sync", "downpour", "mixed"]
)
def test_a_runs_events_count_half_the_bytes_of_pushes(
    cluster: ClusterInfo, tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    found = counted(tmp_path, algorithm, "pushed_bytes")
    assert found["bfloat16"] == 0.5 * found["float32"] > 0


def test_a_runs_events_count_half_the_bytes_of_the_gradients_of_an_all_reduce(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    """Each of two workers sends the other half of its own, 2 bytes an element less; the sum comes back in float32."""
    found = counted(tmp_path, {"name": "sync"}, "sent_bytes")
    numel = sum(value.numel() for value in load_weights(tmp_path / "float32" / "model.safetensors").values())
    steps = 2 * 15
    padded, rest = divmod(found["float32"] - found["bfloat16"], 2 * steps)
    assert rest == 0
    assert numel <= padded < numel + 128
