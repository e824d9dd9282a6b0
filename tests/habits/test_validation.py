"""A validation set: evaluated while it trains, apart from the test set, which is evaluated once at the end."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.control.fake_actors import FakeActor
from tests.runtime.control.fakes import FakeLog, prepared
from tests.runtime.runs import spec
from trainers import Event, train
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.errors import UserCodeFailed
from trainers.events import headline_of, is_judged, metrics_of, set_of
from trainers.runtime.control.snapshots import Snapshot, Snapshots
from trainers.spec import DataSpec, TrainSpec
from trainers.training.position import Position
from trainers.training.setup import set_up

SETS = "tests.data.usersets"
KINDS = ["six_arrays", "three_pairs", "three_maps", "three_sets_of_words"]


def data(kind: str, **fields: Any) -> DataSpec:
    return DataSpec.model_validate({"name": f"{SETS}:{kind}", "loader_processes": 0} | fields)


def flat(batches: Any) -> torch.Tensor:
    """The inputs of all minibatches."""
    parts = [batch.data["words"] if isinstance(batch.data, dict) else batch.data[0] for batch in batches]
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_function_may_return_three_sets(kind: str, shared: bool, tmp_path: Path) -> None:
    with open_dataset(data(kind), 0, tmp_path if shared else None) as found:
        sizes = found.num_train, found.num_validation, found.num_test
        assert sizes == (6, 2, 4)
        assert "6 training, 2 validation and 4 test examples" in found.facts.sentence(6, 4, 2)
        validation, test = flat(found.validation_batches(1)), flat(found.test_batches(3))
        assert len(validation) / 2 == len(test) / 4
        if kind == "three_pairs":
            assert validation.tolist() == [12, 13, 14, 15]
            assert test.tolist() == list(range(16, 24))
    if kind in ("six_arrays", "three_pairs"):
        with open_partitioned(data(kind), 0) as held:
            assert (held.num_train, held.num_validation, held.num_test) == sizes
            assert torch.equal(flat(held.validation_batches(2)), validation)
            assert torch.equal(flat(held.test_batches(2)), test)


def test_what_is_wrong_names_its_set() -> None:
    with open_dataset(data("three_maps", root="broken"), 0) as found:
        assert len(list(found.validation_batches(5))) == 1
        with pytest.raises(UserCodeFailed, match="test example 1, raised ValueError: the sensor was off at 1"):
            list(found.test_batches(4))


def test_what_is_trained_does_not_depend_on_it() -> None:
    fields: dict[str, Any] = {"model": "mlp", "batch": 2, "data": data("three_pairs").model_dump()}
    layout = set_up(TrainSpec.model_validate(fields), None).run_layout()
    assert (layout.num_examples, layout.has_validation) == (6, True)


# -- what the coordinator makes of it ---------------------------------------------------------------------------------


def looking(folder: Path, log: FakeLog) -> tuple[Snapshots, FakeActor]:
    evaluator = FakeActor(evaluate=({"loss": 1.0, "accuracy": 0.5}, 0.1))
    pool = SimpleNamespace(start_evaluator=lambda: evaluator)
    keeps = {"early_stop": {"metric": "loss", "patience": 9}, "checkpoint": {"keep_best": "loss"}}
    found = Snapshots(pool, spec(**keeps), folder, log, lambda _: None)  # type: ignore[arg-type]
    found.begin(SimpleNamespace(**{**vars(prepared(0)), "has_validation": True}))  # type: ignore[arg-type]
    return found, evaluator


def version(epoch: int, is_last: bool = False) -> Snapshot:
    return Snapshot([], [], Position(epoch=epoch, examples=100 * epoch), is_last)


def test_the_test_set_is_evaluated_once_at_the_end_and_judges_nothing(tmp_path: Path) -> None:
    log = FakeLog()
    found, evaluator = looking(tmp_path, log)
    for epoch, loss in ((1, 2.0), (2, 1.0)):
        evaluator.answers["evaluate"] = ({"loss": loss, "accuracy": 0.5}, 0.1)
        asyncio.run(found._work(version(epoch)))
    assert [call[2] for call in evaluator.called("evaluate")] == ["validation"] * 2
    evaluator.answers["evaluate"] = ({"loss": 0.9, "accuracy": 0.6}, 0.1)
    measured = asyncio.run(found.finish(version(3, is_last=True), is_complete=True))
    assert [call[2] for call in evaluator.called("evaluate")] == ["validation"] * 3 + ["test"]
    assert measured.metrics == measured.validation == {"loss": 0.9, "accuracy": 0.6}
    assert measured.error_median is None
    *validations, test = log.of("evaluation")
    assert [one["validation_loss"] for one in validations] == [2.0, 1.0, 0.9]
    assert not any(name.startswith("test_") for one in validations for name in one)
    assert (test["set"], test["test_accuracy"], "test_error_median" in test) == ("test", 0.6, False)
    assert [is_judged(one) for one in log.of("evaluation")] == [True, True, True, False]
    assert metrics_of(validations[0]) == {"loss": 2.0, "accuracy": 0.5}
    assert headline_of(validations[0]) == ("loss", False)
    assert found.best is not None
    assert found.best.value == 0.9
    after, _ = looking(tmp_path, FakeLog())
    after.restore(log.of("evaluation"))
    assert after.stops_by is not None
    assert after.best == found.best
    assert after.stops_by.since == 0  # the evaluation of the test set did not count


def test_a_run_that_pauses_leaves_the_test_set_for_later(tmp_path: Path) -> None:
    log = FakeLog()
    found, evaluator = looking(tmp_path, log)
    measured = asyncio.run(found.finish(version(3, is_last=True), is_complete=False, is_end=False))
    assert [call[2] for call in evaluator.called("evaluate")] == ["validation"]
    assert measured.metrics == {}
    assert measured.validation == {"loss": 1.0, "accuracy": 0.5}


def test_without_a_validation_set_all_is_as_before() -> None:
    old = {"epoch": 1, "examples": 100, "test_loss": 1.0, "test_accuracy": 0.5, "test_error_median": 0.5}
    assert (set_of(old), is_judged(old), metrics_of(old)) == ("test", True, {"loss": 1.0, "accuracy": 0.5})


@pytest.mark.usefixtures("cluster")
def test_a_run_on_ray_tells_both(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 2, 60)
    sets = (x[:40], y[:40]), (x[40:50], y[40:50]), (x[50:], y[50:])
    asked = TrainSpec.model_validate({"model": "mlp", "batch": 8, "epochs": 2, "workers": 1})
    result = train(asked, data=sets, run_dir=tmp_path)
    assert set(result.validation) == set(result.metrics) == {"loss", "accuracy"}
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    found = [event.data for line in lines if (event := Event.model_validate_json(line)).type == "evaluation"]
    assert [set_of(one) for one in found] == ["validation"] * (len(found) - 1) + ["test"]
    assert metrics_of(found[-1]) == result.metrics
    assert metrics_of(found[-2]) == result.validation
