"""Evaluations in the middle of an epoch: at exact steps, told with their place, and without a trace in the result."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from api.cli.display import evaluation_line
from service.jobs.metric_series import SeriesCache
from service.sweeps.trial_curve import TrialCurve
from service.tracking.scalars import Scalars
from tests.local_runs import LocalRun
from tests.runtime.runs import finished, spec
from trainers import Event, TrainSpec
from trainers.training.checkpoint import read_checkpoint

BATCH, EXAMPLES = 5 * 7, 203  # V = 5 virtual workers with 7 examples each: 6 steps an epoch, the last one smaller
DUE = [(0, 4), (1, 0), (1, 2)]  # every 4 steps, and the end of the first epoch; the end of the run is evaluated anyway


def within(count: int, **fields: Any) -> TrainSpec:
    workers = {"count": count, "virtual": 5}
    return spec(**({"workers": workers, "evaluate": {"every_steps": 4}} | fields))


ALGORITHMS: list[dict[str, Any]] = [
    {"algorithm": "sync"},
    {"algorithm": {"name": "parallel_sgd", "average_every": 3}},
    {"algorithm": {"name": "admm", "form": "consensus", "steps": 3}},
    {"algorithm": {"name": "diloco", "average_every": 3}},
    {"algorithm": "hybrid", "model": "lenet5"},
    {"algorithm": "spatial", "model": "lenet5"},
]


@pytest.mark.parametrize("fields", ALGORITHMS, ids=["sync", "parallel_sgd", "admm", "diloco", "hybrid", "spatial"])
def test_versions_are_taken_at_exact_steps_and_leave_no_trace(tmp_path: Path, fields: dict[str, Any]) -> None:
    counts = (1, 2, 3) if fields["algorithm"] == "sync" else (2,)
    plain = LocalRun(within(counts[0], **fields, evaluate={}), tmp_path / "plain")
    expected = read_checkpoint(plain.train())
    for count in counts:
        run = LocalRun(within(count, **fields), tmp_path / str(count))
        found = read_checkpoint(run.train())
        assert [(p.epoch, p.step) for _, _, p in run.snapshots[:-1]] == DUE
        assert [p.examples for _, _, p in run.snapshots[:-1]] == [4 * BATCH, EXAMPLES, EXAMPLES + 2 * BATCH]
        for name, tensor in expected.model.items():
            assert torch.equal(found.model[name], tensor), name


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_a_run_tells_them_with_their_place_in_both_forms(tmp_path: Path) -> None:
    told, models = [], []
    for form, steps in (("all_reduce", 4), ("parameter_server", 4), ("all_reduce", None)):
        folder = tmp_path / f"{form}-{steps}"
        train = within(2, algorithm={"name": "sync", "form": form}, evaluate={"every_steps": steps})
        run = finished(f"steps-{form}-{steps}", train, folder)
        assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
        told.append([{k: v for k, v in one.items() if k != "seconds"} for one in run.of("evaluation")])
        models.append(load_file(folder / "model.safetensors"))
    by_steps, through_shards, by_epochs = told
    assert [one["step"] for one in by_steps] == [4, 6, 8, 12]
    assert [one["examples"] for one in by_steps] == [4 * BATCH, EXAMPLES, EXAMPLES + 2 * BATCH, 2 * EXAMPLES]
    assert [one["epoch"] for one in by_steps] == [4 * BATCH / EXAMPLES, 1, 1 + 2 * BATCH / EXAMPLES, 2]
    assert through_shards == by_steps
    assert by_epochs == [one for one in by_steps if one["epoch"] in (1, 2)]  # the median of the error, too
    for name, tensor in models[0].items():
        assert torch.equal(models[1][name], tensor), name
        assert torch.equal(models[2][name], tensor), name


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_a_resumed_run_counts_its_steps_from_the_beginning_of_the_training(tmp_path: Path) -> None:
    first = finished("steps-first", within(2, epochs=1), tmp_path / "first")
    resume = {"resume": first.of("checkpoint")[-1]["path"]}
    again = finished("steps-again", within(2, checkpoint=resume), tmp_path / "again")
    assert [one["step"] for one in again.of("evaluation")] == [8, 12]
    assert again.of("step")[-1]["step"] == 12


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_asynchronous_workers_are_evaluated_by_the_updates_that_they_report(tmp_path: Path) -> None:
    """They do not stop for it: 29 minibatches an epoch, and each is an update."""
    evaluate = {"every_epochs": 0, "every_steps": 50}
    train = spec(algorithm="downpour", epochs=50, evaluate=evaluate, report_every_s=0.05)
    run = finished("updates", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    places = [one["examples"] for one in run.of("evaluation")]
    assert places == sorted(places)
    assert len(places) > 1  # of which the last is that of the end
    assert places[-1] == 50 * EXAMPLES
    assert all("step" not in one for one in run.of("evaluation"))


def test_steps_of_changing_size_are_not_counted() -> None:
    with pytest.raises(ValidationError, match=r"every_steps counts steps of one size.*use every_epochs or every_s"):
        spec(elastic={"mode": "scale_batch"}, evaluate={"every_steps": 4})


# -- where evaluations are shown -----------------------------------------------------------------------------------


def evaluated(epoch: float, seq: int, accuracy: float) -> Event:
    examples = round(epoch * EXAMPLES)
    data = {"epoch": epoch, "examples": examples, "step": round(6 * epoch), "seconds": 0.1}
    return Event(
        seq=seq, time=float(seq), type="evaluation", data=data | {"test_loss": 1 - accuracy, "test_accuracy": accuracy}
    )


def test_the_terminal_says_where_in_the_epoch() -> None:
    assert evaluation_line(evaluated(1, 1, 0.5)).startswith("epoch 1  test accuracy 0.5000")
    assert evaluation_line(evaluated(4 / 3, 1, 0.5)).startswith("epoch 1.33  test accuracy 0.5000")


def test_the_series_and_the_trackers_have_them_at_their_place(tmp_path: Path) -> None:
    events = [evaluated(0.5, 1, 0.5), evaluated(1, 2, 0.7), evaluated(1.5, 3, 0.8)]
    (tmp_path / "events.jsonl").write_text("".join(f"{event.text}\n" for event in events))
    assert SeriesCache().line(tmp_path, "test_accuracy", "epoch", 100).points == [(0.5, 0.5), (1, 0.7), (1.5, 0.8)]
    assert SeriesCache().line(tmp_path, "test_accuracy", "step", 100).points == [(3, 0.5), (6, 0.7), (9, 0.8)]
    points = Scalars().points(events[0])
    assert points is not None
    assert points["test/accuracy"] == 0.5
    assert not any("step" in name or "epoch" in name for name in points)


def test_a_sweeps_error_is_that_at_the_ends_of_epochs_where_there_are_such() -> None:
    curve = TrialCurve()
    curve.add(evaluated(0.5, 1, 0.5))
    assert curve.error == pytest.approx(0.5)
    curve.add(evaluated(1, 2, 0.7))
    curve.add(evaluated(1.5, 3, 0.8))
    assert curve.error == pytest.approx(0.3)
    assert [point.epoch for point in curve.points] == [0.5, 1, 1.5]


def test_the_end_of_a_run_within_an_epoch_counts_as_that_of_its_last_epoch() -> None:
    curve = TrialCurve()
    for number, accuracy in ((1, 0.1), (5, 0.5)):
        curve.add(evaluated(number, number, accuracy))
    curve.add(evaluated(5.5, 6, 0.9))
    curve.add(evaluated(5.7, 7, 0.7))
    assert curve.error == pytest.approx(0.7), "it has not ended"
    succeeded = {"state": "SUCCEEDED", "reason": "Done", "message": ""}
    curve.add(Event(seq=8, time=8.0, type="state", data=succeeded))
    assert curve.error == pytest.approx(0.4), "the median of epochs 2 to 6"
