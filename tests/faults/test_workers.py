"""Workers die, hang, break, join and leave while a run trains; what comes out is as if nothing had happened."""

import os
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from tests.local_runs import LocalRun
from tests.runtime.runs import Watched, gone_soon, soon, start
from trainers import ClusterInfo, Event, SpecRejected, TrainSpec
from trainers.models.weights import load_weights
from trainers.training.checkpoint import read_checkpoint

pytestmark = pytest.mark.long

CODE = str(Path(__file__).parent / "code")
EXAMPLES = 203
DATA = {"name": "digits", "limit": EXAMPLES, "random_crop": 1, "horizontal_flip": True}


def spec(plan: Path, pause_s: float = 0.01, **fields: Any) -> TrainSpec:
    """Momentum, dropout, batch norm, augmentation and mixup on, gradients clipped, an average; five virtual workers.
    With a pause, its last quarter takes long until all may hurry, so that it does not end before."""
    plan.mkdir(exist_ok=True)
    examples = fields.get("epochs", 40) * (10_007 if fields.get("data") == "faulty:prime" else EXAMPLES)
    kwargs = {"plan": str(plan), "pause_s": pause_s, "slow_after": examples * 3 // 4 // 7}
    base: dict[str, Any] = {
        "code": CODE,
        "data": DATA | {"mixup": 0.3},
        "model": {"name": "faulty:struck", "kwargs": kwargs},
        "workers": {"count": 4, "virtual": 5},
        "batch": 7,
        "epochs": 40,
        "seed": 3,
        "optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001},
        "clip": {"value": 0.02},
        "ema": {"decay": 0.9},
        "evaluate": {"every_epochs": 0},
        "checkpoint": {"every_epochs": 0},
        "report_every_s": 0.05,
    }
    return TrainSpec.model_validate(base | fields)


def strike(plan: Path, what: str, whom: str = "any") -> None:
    """Have it happen to the next worker that begins a minibatch, or to the one named."""
    part = plan / f".{whom}"
    part.write_text(what)
    part.rename(plan / whom)


def hurry(plan: Path) -> None:
    """All has happened that was to: train the rest without a pause."""
    (plan / "hurry").touch()


def allow(plan: Path, worker: int, minibatches: int) -> None:
    """Let a worker train so many in all, and hold it before the next until all may hurry."""
    part = plan / f".until-{worker}"
    part.write_text(str(minibatches))
    part.rename(plan / f"until-{worker}")


def has_trained(watched: Watched, more: int = 100) -> int:
    """Wait until so many more examples were trained; how many there are."""
    before = watched.of("step")[-1]["examples"] if watched.of("step") else 0
    event = watched.until(lambda e: e.type == "step" and e.data["examples"] >= before + more)
    return int(event.data["examples"])


def resized(watched: Watched, workers: int) -> Event:
    return watched.until(lambda e: e.type == "resize" and e.data["workers"] == workers)


def fault(watched: Watched) -> Event:
    return watched.until(lambda e: e.type == "fault")


def ended_well(watched: Watched, epochs: int, examples: int = EXAMPLES) -> dict[str, torch.Tensor]:
    """The finished model of a run in which every example of every epoch was trained once, and what it is an average
    of."""
    trained_each_once(watched, epochs, examples)
    average, params = (load_weights(watched.folder / f"{name}.safetensors") for name in ("model", "raw"))
    return average | {f"{name}, as it is": value for name, value in params.items()}


def trained_each_once(watched: Watched, epochs: int, examples: int) -> None:
    """It ends well, and trained every example of every epoch once."""
    assert watched.end().data["state"] == "SUCCEEDED", watched.events[-5:]
    audits = {audit["epoch"]: audit for audit in watched.of("epoch_audit")}  # the last of one that was trained again
    whole = {"trained": examples, "lost": 0, "duplicated": 0}
    assert [{name: audits[epoch][name] for name in whole} for epoch in audits] == [whole] * epochs
    assert watched.of("result")[0]["examples"] == epochs * examples
    gone_soon(watched.run.job_id, [])


def resize_and_kill(watched: Watched, plan: Path, epochs: int) -> None:
    """A third worker joins a run of two, and later one is killed; all ends well."""
    has_trained(watched)
    watched.run.scale(3)
    resized(watched, 3)
    has_trained(watched, EXAMPLES)  # past an epoch's end, where there is a checkpoint
    strike(plan, "kill")
    fault(watched)
    hurry(plan)
    trained_each_once(watched, epochs, EXAMPLES)


def assert_equal(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


@pytest.fixture(scope="module")
def undisturbed(cluster: ClusterInfo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    run = start("faults-none", spec(folder / "plan", pause_s=0, workers={"count": 2, "virtual": 5}), folder)
    return ended_well(run, 40)


STREAM = {"fragments": 2, "delay": 3}

FORMS = {
    "all_reduce": {},
    "parameter_server": {"algorithm": {"name": "sync", "form": "parameter_server"}},
    "process_group": {"transport": "process_group"},
}


@pytest.mark.parametrize("stream", [{}, pytest.param(STREAM, marks=pytest.mark.long)], ids=["plain", "streaming"])
def test_rounds_of_local_steps_give_the_same_bits_through_a_resize_and_a_kill(
    cluster: ClusterInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: dict[str, Any]
) -> None:
    """Each virtual worker has parameters and optimizer state of its own, which a resize moves, and a kill takes back to
    the last checkpoint. So are sums that travel, of which there is one after three of four steps."""
    algorithm = {"name": "diloco", "average_every": 4, **stream}
    fields: dict[str, Any] = {"algorithm": algorithm, "optimizer": "adamw", "ema": None}
    fields |= {"workers": {"count": 2, "virtual": 5}, "epochs": 12, "checkpoint": {"every_epochs": 1}}
    plan = tmp_path / "plan"
    watched = start(f"faults-rounds-{len(stream)}", spec(plan, pause_s=0.1, **fields), tmp_path / "run")
    resize_and_kill(watched, plan, epochs=12)
    monkeypatch.syspath_prepend(CODE)
    alone = LocalRun(spec(tmp_path / "alone", pause_s=0, **fields), tmp_path / "alone-run")
    found = load_weights(watched.folder / "model.safetensors")
    wanted = read_checkpoint(alone.train()).model
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "muon"])
def test_a_whole_recipe_gives_the_same_bits_through_a_resize_and_a_kill(
    cluster: ClusterInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """Moments by element and of whole parameters, groups of which one is frozen, a limit of the norm, an average."""
    groups = [{"match": "*.bias", "lr": 0.004, "weight_decay": 0}, {"match": "norm.weight", "frozen": True}]
    fields: dict[str, Any] = {"optimizer": {"name": optimizer, "lr": 0.002, "groups": groups}, "clip": {"norm": 0.5}}
    fields |= {"workers": {"count": 2, "virtual": 5}, "epochs": 12, "schedule": "cosine"}
    fields |= {"warmup": {"name": "linear", "steps": 20}, "data": DATA}
    plan = tmp_path / "plan"
    watched = start(f"faults-{optimizer}", spec(plan, pause_s=0.1, **fields), tmp_path / "run")
    has_trained(watched)
    watched.run.scale(3)
    resized(watched, 3)
    has_trained(watched)
    strike(plan, "kill")
    fault(watched)
    hurry(plan)
    found = ended_well(watched, 12)
    monkeypatch.syspath_prepend(CODE)
    alone = LocalRun(spec(tmp_path / "alone", pause_s=0, **fields), tmp_path / "alone-run")
    wanted = read_checkpoint(alone.train())
    for name, value in wanted.model.items():
        assert torch.equal(found[f"{name}, as it is"], value), name
    for name, value in wanted.optimizer["ema"].items():
        assert torch.equal(found[name], value), name


@pytest.mark.parametrize("form", ["all_reduce", "parameter_server", "process_group"])
def test_four_two_three_four_workers_with_two_kills_give_the_same_bits(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor], form: str
) -> None:
    plan = tmp_path / "plan"
    watched = start(f"faults-{form}", spec(plan, **FORMS[form]), tmp_path)
    has_trained(watched)
    watched.run.trace(100)
    watched.run.scale(2)
    resized(watched, 2)
    has_trained(watched)
    strike(plan, "kill")
    fault(watched)
    resized(watched, 2)  # somebody took its place
    has_trained(watched)
    watched.run.scale(3)
    resized(watched, 3)
    has_trained(watched)
    watched.run.trace(100)
    strike(plan, "kill")
    fault(watched)
    watched.run.scale(4)
    resized(watched, 4)
    hurry(plan)
    assert_equal(ended_well(watched, 40), undisturbed)
    ended = [trace for trace in watched.of("trace") if {"file", "why"} & trace.keys()]
    assert len(ended) == 2, "a resize and a kill end what is recorded"
    assert all((tmp_path / "traces" / trace["file"]).exists() for trace in ended if "file" in trace)


def test_a_worker_that_is_stopped_is_found_and_replaced(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    plan = tmp_path / "plan"
    watched = start("faults-stop", spec(plan), tmp_path)
    has_trained(watched)
    strike(plan, "stop")
    struck = fault(watched).data
    assert "did not" in struck["why"], struck
    resized(watched, 4)
    hurry(plan)
    assert_equal(ended_well(watched, 40), undisturbed)


def test_an_exception_costs_the_worker_and_not_the_run(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    plan = tmp_path / "plan"
    watched = start("faults-raise", spec(plan), tmp_path)
    has_trained(watched)
    strike(plan, "raise")
    assert "struck" in fault(watched).data["why"]
    resized(watched, 4)
    hurry(plan)
    assert_equal(ended_well(watched, 40), undisturbed)


@pytest.mark.parametrize(
    "sizes", [(2, 4, 3, 5), pytest.param((2, 4, 3, 5, 2, 3, 2, 5, 4, 3), id="twenty", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("algorithm", ["sync", "downpour", "delta", "groups", "eamsgd"])
def test_every_example_of_a_prime_number_once_through_kills_and_resizes(
    cluster: ClusterInfo, tmp_path: Path, algorithm: str, sizes: tuple[int, ...]
) -> None:
    plan, pause_s = tmp_path / "plan", 0.0025 * len(sizes)
    workers = {"count": 3, "virtual": 5, "max": 5} if algorithm == "sync" else {"count": 3, "max": 5}
    own = {
        "sync": {"name": "sync"},
        "downpour": {"name": "downpour", "server_rule": "delay_compensated"},
        "delta": {"name": "downpour", "push": "delta", "steps": 5, "dynamic": True},
        "groups": {"name": "mixed", "push": "delta", "steps": 5, "outer": "nesterov"},
        "eamsgd": {"name": "eamsgd", "tau": 5},
    }
    fields = {"algorithm": own[algorithm], "workers": workers, "epochs": 1, "data": "faulty:prime"}
    train = spec(plan, pause_s=pause_s, **fields)
    watched = start(f"faults-prime-{algorithm}", train, tmp_path)
    for size in sizes:
        has_trained(watched)
        strike(plan, "kill")
        fault(watched)
        watched.run.scale(size)
        resized(watched, size)
    hurry(plan)
    ended_well(watched, 1, 10_007)


def test_what_one_who_leaves_at_the_end_had_leased_is_trained_by_the_other(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    """Of 29 minibatches each worker has trained 12 and has the thirteenth under way: everything else is leased."""
    plan = tmp_path / "plan"
    train = spec(plan, pause_s=0, algorithm="downpour", workers={"count": 2, "min": 1}, epochs=1)
    allow(plan, 0, 13)  # the first of which is that of the preflight
    allow(plan, 1, 12)
    watched = start("faults-leased", train, tmp_path)
    soon(lambda: all((plan / f"held-{worker}").exists() for worker in (0, 1)))
    watched.run.scale(1)
    allow(plan, 1, 13)
    resized(watched, 1)
    hurry(plan)
    ended_well(watched, 1)


def test_a_job_that_crashes_at_every_start_fails_and_names_the_cause(cluster: ClusterInfo, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.mkdir()
    for number in range(12):
        # Before a first step is reported, which would count as progress. Worker 0 checks the spec by a minibatch.
        strike(plan, "kill", f"{number}-{1 + (number == 0)}")
    watched = start("faults-poison", spec(plan, workers={"count": 1, "virtual": 1}), tmp_path)
    end = watched.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "WorkerDied")
    assert "died" in end["message"]
    assert len(watched.of("fault")) == 3
    gone_soon("faults-poison", [])


def test_a_run_says_how_far_it_can_be_scaled(cluster: ClusterInfo, tmp_path: Path) -> None:
    watched = start("faults-scale", spec(tmp_path / "plan", epochs=400), tmp_path)
    has_trained(watched)
    with pytest.raises(SpecRejected, match="1 to 5 of them, not 6"):
        watched.run.scale(6)
    watched.run.cancel()
    assert watched.end().data["state"] == "CANCELLED"


@pytest.mark.parametrize("form", ["all_reduce", "parameter_server"])
def test_a_coordinator_that_died_takes_over_who_lived_on(
    cluster: ClusterInfo, tmp_path: Path, undisturbed: dict[str, torch.Tensor], form: str
) -> None:
    # Slowly: the workers go on while there is no coordinator, and should have something left to do after the second.
    plan = tmp_path / "plan"
    watched = start(f"faults-headless-{form}", spec(plan, pause_s=0.02, **FORMS[form]), tmp_path)
    for _ in range(2):
        has_trained(watched)
        os.kill(coordinator(watched), signal.SIGKILL)
        watched.until(lambda e: e.data.get("reason") == "CoordinatorDied")
    hurry(plan)
    assert_equal(ended_well(watched, 40), undisturbed)
    assert [event.seq for event in watched.events] == list(range(1, len(watched.events) + 1))
    assert not watched.of("fault"), "all workers lived on"


def test_an_asynchronous_run_goes_on_under_another_coordinator(cluster: ClusterInfo, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    train = spec(plan, algorithm="downpour", workers=3, epochs=1, data="faulty:prime")
    watched = start("faults-headless-downpour", train, tmp_path)
    has_trained(watched, 1000)
    os.kill(coordinator(watched), signal.SIGKILL)
    watched.until(lambda e: e.data.get("reason") == "CoordinatorDied")
    hurry(plan)
    ended_well(watched, 1, 10_007)


def coordinator(watched: Watched) -> int:
    """Its process, now."""
    return int(ray.get(watched.run.coordinator.process.remote()))


def test_hybrid_loses_the_step_in_flight_and_divides_its_layers_anew(cluster: ClusterInfo, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    fields: dict[str, Any] = {
        "algorithm": "hybrid",
        "data": DATA,  # hybrid divides the classes and mixes none
        "workers": {"count": 3, "virtual": 5},
        "epochs": 80,
        "clip": {"norm": 0.5},
    }
    # Products of another K may be rounded otherwise; at a rate ten times this, 500 steps make 0.06 of that.
    fields |= {"optimizer": {"name": "momentum", "lr": 0.002, "weight_decay": 0.001}}
    clean = ended_well(start("faults-hybrid-clean", spec(plan, pause_s=0, **fields), tmp_path / "clean"), 80)
    watched = start("faults-hybrid", spec(plan, pause_s=0.05, **fields), tmp_path)
    has_trained(watched)
    pids = [worker["pid"] for worker in watched.of("actors")[0]["workers"]]
    os.kill(pids[2], signal.SIGKILL)
    fault(watched)
    resized(watched, 3)  # somebody took its place
    has_trained(watched)
    watched.run.scale(2)
    resized(watched, 2)
    has_trained(watched)
    os.kill(pids[1], signal.SIGKILL)
    fault(watched)
    watched.run.scale(4)
    resized(watched, 4)
    hurry(plan)
    found = ended_well(watched, 80)
    assert all(before["examples"] <= step["examples"] for before, step in pairwise(watched.of("step")))
    assert not [line for line in watched.of("log") if "back to the last checkpoint" in line["message"]]
    for name, value in clean.items():
        torch.testing.assert_close(found[name], value, rtol=0.01, atol=0.001)


def test_a_batch_that_follows_the_workers_trains_every_example_once_and_moves_the_rate(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    plan = tmp_path / "plan"
    train = spec(
        plan, workers={"count": 2, "virtual": 4, "max": 4}, scaling="linear",
        elastic={"mode": "scale_batch", "ramp_epochs": 0.5},
    )  # fmt: skip
    watched = start("faults-batch", train, tmp_path)
    has_trained(watched)
    watched.run.scale(4)
    assert resized(watched, 4).data["batch"] == 8 * 7
    watched.until(lambda e: e.type == "step" and e.data["learning_rate"] == 0.04)
    strike(plan, "kill")
    fault(watched)
    resized(watched, 4)  # somebody took its place
    watched.run.scale(1)
    assert resized(watched, 1).data["batch"] == 2 * 7
    watched.until(lambda e: e.type == "step" and e.data["learning_rate"] == 0.01)
    hurry(plan)
    ended_well(watched, 40)
    rates = {step["learning_rate"] for step in watched.of("step")}
    assert any(0.02 < rate < 0.04 for rate in rates), "the rate was led up"
    assert {0.01, 0.02, 0.04} <= rates <= {rate for rate in rates if 0.01 <= rate <= 0.04}
