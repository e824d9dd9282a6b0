"""The best model, and runs that stop because they get no better."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tests.runtime.control.fake_actors import FakeActor
from tests.runtime.control.fakes import FakeLog, prepared
from tests.runtime.runs import finished, spec
from trainers import TrainSpec
from trainers.errors import DiskFull, SpecRejected
from trainers.runtime.control.judges.improvement import Improvement
from trainers.runtime.control.snapshots import Snapshot, Snapshots
from trainers.spec.improvement import MetricChoice
from trainers.tasks.config import METRICS
from trainers.tasks.registry import _TASKS
from trainers.training.position import Position


def evaluation(**metrics: float) -> dict[str, Any]:
    named = {f"test_{name}": value for name, value in metrics.items()}
    return {"epoch": 1, "examples": 100, "headline": "accuracy", "higher_is_better": True, **named}


def judged(values: list[float], name: str = "loss", min_delta: float = 0.0, **choice: str) -> list[tuple[bool, int]]:
    """For each value whether it is an improvement, and how many in a row were none."""
    one = Improvement("early_stop", MetricChoice(**choice), min_delta)  # type: ignore[arg-type]
    return [(one.add(evaluation(**{"accuracy": 0.0, name: value})), one.since) for value in values]


def test_less_loss_and_more_accuracy_are_better() -> None:
    assert judged([3, 2, 2, 4, 1], metric="loss") == [(True, 0), (True, 0), (False, 1), (False, 2), (True, 0)]
    assert judged([0.3, 0.2, 0.4], "accuracy") == [(True, 0), (False, 1), (True, 0)]
    assert judged([3, 2, 4], "entropy", metric="entropy", mode="max") == [(True, 0), (False, 1), (True, 0)]


def test_an_improvement_is_more_than_min_delta_better_than_the_best() -> None:
    """Small ones add up against the best, not against the one before."""
    assert [found for found, _ in judged([1.0, 0.95, 0.91, 0.89], metric="loss", min_delta=0.1)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_what_is_no_number_is_no_improvement() -> None:
    assert judged([math.nan, 1.0, math.nan], metric="loss") == [(False, 1), (True, 0), (False, 1)]


def test_a_headline_without_a_value_stays_the_headline() -> None:
    """The loss, which gets better, does not stand in for it."""
    one = Improvement("early_stop", MetricChoice())
    found = [one.add(evaluation(accuracy=accuracy, loss=loss)) for accuracy, loss in ((0.5, 3.0), (math.nan, 2.0))]
    assert (found, one.metric, one.since) == ([True, False], "accuracy", 1)


def test_a_metric_that_nobody_measures_or_that_has_no_direction_is_refused() -> None:
    with pytest.raises(SpecRejected, match=r"early_stop.metric: .* not measure f1; it measures accuracy, loss"):
        judged([1.0], metric="f1")
    with pytest.raises(SpecRejected, match=r"early_stop.mode: say whether more of entropy is better \(max\)"):
        judged([1.0], "entropy", metric="entropy")
    with pytest.raises(ValidationError, match=r"set evaluate.every_epochs or every_steps"):
        spec(early_stop={}, evaluate={"every_epochs": 0})


def test_a_metric_that_a_task_by_name_does_not_have_is_refused_as_the_spec_is_read() -> None:
    with pytest.raises(
        ValidationError, match=r"measures accuracy, loss, top5_accuracy, and no 'accuracies'; did you mean"
    ):
        TrainSpec.model_validate({"early_stop": "accuracies"})
    with pytest.raises(ValidationError, match=r"keep_best: regression measures loss, mae, r2, and no 'test_r2'.* r2\?"):
        TrainSpec.model_validate({"task": "regression", "checkpoint": {"keep_best": "test_r2"}})
    with pytest.raises(ValidationError, match=r"no 'f1'; take one of these"):
        TrainSpec.model_validate({"checkpoint": {"keep_best": {"metric": "f1", "mode": "max"}}})
    own = TrainSpec.model_validate(
        {"task": "mine:Task", "model": "task", "early_stop": {"metric": "f1", "mode": "max"}}
    )
    assert own.early_stop is not None


def test_of_the_metrics_of_tasks_by_name_it_is_known_which_of_two_values_is_better() -> None:
    fields = {"task": "language_model", "data": "text", "early_stop": "perplexity"}
    found = TrainSpec.model_validate(fields).early_stop
    assert found is not None
    assert found.mode == "min"
    for task, metrics in METRICS.items():
        kind: Any = _TASKS[task]
        assert next(iter(metrics.items())) == (kind.headline, "max" if kind.higher_is_better else "min")


def test_the_metric_alone_stands_for_the_section() -> None:
    found = TrainSpec.model_validate({"early_stop": "loss", "checkpoint": {"keep_best": "accuracy"}})
    assert found.early_stop is not None
    assert (found.early_stop.metric, found.early_stop.patience) == ("loss", 3)
    assert found.checkpoint.keep_best == MetricChoice(metric="accuracy", mode="max")
    assert TrainSpec.model_validate(found.model_dump()) == found
    assert TrainSpec.model_validate(TrainSpec().model_dump()).early_stop is None


# -- what the coordinator makes of it ---------------------------------------------------------------------------------

FIELDS = {"early_stop": {"metric": "loss", "patience": 2}, "checkpoint": {"keep_best": "loss"}}


def looking(folder: Path, log: FakeLog, **answers: Any) -> tuple[Snapshots, FakeActor, list[str]]:
    evaluator, said = FakeActor(**answers), list[str]()
    pool = SimpleNamespace(start_evaluator=lambda: evaluator)
    found = Snapshots(pool, spec(**FIELDS), folder, log, said.append)  # type: ignore[arg-type]
    return found, evaluator, said


def look(found: Snapshots, evaluator: FakeActor, loss: float, epoch: int) -> None:
    evaluator.answers["evaluate"] = ({"loss": loss, "accuracy": 0.5}, 0.1)
    asyncio.run(found._work(Snapshot([], [], Position(epoch=epoch, examples=100 * epoch))))


def test_the_best_version_is_written_and_the_run_told_to_stop(tmp_path: Path) -> None:
    found, evaluator, said = looking(tmp_path, FakeLog())
    found.begin(prepared(0))
    for epoch, loss in enumerate([3.0, 2.0, 2.5, 2.5], 1):
        assert not said
        look(found, evaluator, loss, epoch)
    assert said == ["loss has not improved on 2 in the last 2 evaluations"]
    assert [call[0] for call in evaluator.called("export")] == [str(tmp_path / "best.safetensors")] * 2
    assert found.best is not None
    assert (found.best.metric, found.best.value, found.best.epoch) == ("loss", 2.0, 2)


def test_a_best_value_of_zero_is_told_as_it_is(tmp_path: Path) -> None:
    found, evaluator, said = looking(tmp_path, FakeLog())
    found.begin(prepared(0))
    for epoch in (1, 2, 3):
        look(found, evaluator, 0.0, epoch)
    assert said == ["loss has not improved on 0 in the last 2 evaluations"]


def test_another_coordinator_goes_on_judging(tmp_path: Path) -> None:
    log = FakeLog()
    found, evaluator, _ = looking(tmp_path, log)
    found.begin(prepared(0))
    for epoch, loss in enumerate([2.0, 2.5], 1):
        look(found, evaluator, loss, epoch)
    after, evaluator, said = looking(tmp_path, log)
    after.begin(prepared(0))
    after.restore(log.of("evaluation"))
    assert after.best == found.best
    look(after, evaluator, 2.2, 3)
    assert said
    assert not evaluator.called("export")


def test_a_full_disk_costs_the_best_model_and_not_the_run(tmp_path: Path) -> None:
    log = FakeLog()
    found, evaluator, _ = looking(tmp_path, log, export=DiskFull("there is no room for it"))
    found.begin(prepared(0))
    look(found, evaluator, 2.0, 1)
    assert found.best is None
    assert "the run goes on, and the best model before this one is kept" in log.of("log")[-1]["message"]


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_a_run_on_ray_stops_early_and_leaves_its_best_model(tmp_path: Path) -> None:
    fields = {"early_stop": {"metric": "loss", "patience": 1, "min_delta": 1e9}, "checkpoint": {"keep_best": "loss"}}
    run = finished("stops-early", spec(workers=2, epochs=100, **fields), tmp_path)
    last, result = run.events[-1].data, run.of("result")[-1]
    assert (last["state"], last["reason"]) == ("SUCCEEDED", "StoppedEarly"), last
    assert result["epochs"] < 100
    evaluations = run.of("evaluation")
    best = min(evaluations, key=lambda found: found["test_loss"])
    assert (result["best"]["value"], result["best"]["examples"]) == (best["test_loss"], best["examples"])
    short = finished("as-short", spec(workers=2, epochs=100, max_examples=best["examples"]), tmp_path / "short")
    expected, found = (load_file(path) for path in (short.of("result")[-1]["model_path"], result["best"]["model_path"]))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
