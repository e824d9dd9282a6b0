"""The benchmark of low communication on known figures."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.low_communication import contenders, report
from benchmarks.low_communication.contenders import CONTENDERS, EVALUATED, SYNC, task_of
from benchmarks.low_communication.race import Finish, Found, watch
from benchmarks.measurement.processes import MeasurementError
from trainers.events import Event, EventType

TASK = task_of("digits", Path(), target=0.9)
LIMIT_S = 100.0


def events(*told: tuple[float, EventType, dict[str, Any]]) -> Iterator[Event]:
    """Of a run that begins to train at 10 s."""
    every = [(5.0, "state", {"state": "STARTING"}), (10.0, "state", {"state": "RUNNING"}), *told]
    return (Event(seq=i, time=at, type=kind, data=data) for i, (at, kind, data) in enumerate(every, 1))  # type: ignore[arg-type]


def reported(at: float) -> tuple[float, EventType, dict[str, Any]]:
    """100 examples are trained in a second."""
    return at, "step", {"examples": int(100 * (at - 10))}


def evaluated(at: float, examples: int, accuracy: float) -> tuple[float, EventType, dict[str, Any]]:
    return at, "evaluation", {"test_accuracy": accuracy, "test_loss": 1.0, "examples": examples}


def test_what_counts_is_when_the_version_that_reaches_the_target_was_trained() -> None:
    run = events(
        reported(12.0), reported(13.0), evaluated(13.5, 200, 0.5), reported(14.0), reported(15.0),
        evaluated(15.5, 290, 0.9), evaluated(15.6, 400, 0.95), reported(17.0),
    )  # fmt: skip
    counter = itertools.count(1000, 500)  # bytes: read as training begins, and at each report
    curve = ((2.0, 200, 0.5), (3.0, 290, 0.9))
    assert watch(run, TASK, LIMIT_S, lambda: next(counter)) == Finish(3.0, 1000, 0.9, 290, curve)
    assert next(run).time == 15.6  # it was not followed further


@pytest.mark.parametrize(
    "end", [(130.0, "log", {}), (20.0, "state", {"state": "SUCCEEDED"})], ids=["its seconds", "its examples"]
)
def test_a_run_that_has_used_up_what_it_may_has_not_reached_the_target(end: Any) -> None:
    run = events(reported(12.0), evaluated(12.1, 200, 0.8), reported(15.0), evaluated(15.1, 500, 0.7), end)
    counter = itertools.count(0, 300)
    curve = ((2.0, 200, 0.8), (5.0, 500, 0.7))
    assert watch(run, TASK, LIMIT_S, lambda: next(counter)) == Finish(None, 600, 0.8, 500, curve)


@pytest.mark.parametrize("end", [("FAILED", "the job ended as"), ("SUCCEEDED", "was not evaluated")])
def test_a_run_that_fails_or_is_not_evaluated_is_not_measured(end: tuple[str, str]) -> None:
    state, why = end
    with pytest.raises(MeasurementError, match=why):
        watch(events((20.0, "state", {"state": state})), TASK, LIMIT_S, lambda: 0)


def test_less_loss_is_better_and_less_accuracy_worse() -> None:
    text = task_of("text", Path(), target=2.0)
    assert [text.is_reached(loss) for loss in (1.9, 2.0, 2.1)] == [True, True, False]
    assert [TASK.is_reached(share) for share in (0.95, 0.9, 0.89)] == [True, True, False]
    assert (text.best([3.0, 2.5]), TASK.best([0.3, 0.2])) == (2.5, 0.3)


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("data", ["digits", "text"])
def test_every_contender_is_a_spec_that_is_evaluated_at_the_same_examples(name: str, data: Any) -> None:
    task, workers = task_of(data, Path()), 4
    spec = contenders.spec_of(name, task, workers, seed=3)
    pushed = CONTENDERS[name].pushed_steps
    minibatches = workers if pushed is None else pushed  # of an update
    assert spec.evaluate.every_steps is not None
    assert spec.evaluate.every_steps * minibatches == workers * EVALUATED
    assert spec.seed == 3


def test_without_a_text_the_guide_is_one(tmp_path: Path) -> None:
    contenders.write_guide(tmp_path / "guide.txt")
    assert "# diloco: long rounds of local steps" in (tmp_path / "guide.txt").read_text()


def test_the_digits_of_the_test_are_not_trained() -> None:
    images, labels, tests, answers = contenders.digits("")
    assert images.shape[1:] == tests.shape[1:] == (1, 28, 28)
    assert (len(labels), len(answers)) == (1437 * contenders.REPEATS, 360)
    trained = {image.tobytes() for image in images[:1437]}
    assert not trained & {image.tobytes() for image in tests}


def found() -> Found:
    """Three rounds: diloco is sooner in the first, sync alone reaches the target in the second, diloco alone in the
    third; downpour never does."""
    lost = Finish(None, 9_000_000, 0.4, 4000)
    rounds = [
        {SYNC: Finish(20.0, 40_000_000, 0.91, 2000), "diloco": Finish(10.0, 4_000_000, 0.92, 3000), "downpour": lost},
        {SYNC: Finish(10.0, 20_000_000, 0.93, 2000), "diloco": lost, "downpour": lost},
        {SYNC: lost, "diloco": Finish(10.0, 4_000_000, 0.92, 3000), "downpour": lost},
    ]
    return Found(TASK, 100.0, 2, rounds, {"parallel_sgd": "seed 0: it failed"})


def test_ratios_to_sync_are_those_of_rounds_that_tell_something() -> None:
    time, sent = report.time_ratio(found(), "diloco"), report.bytes_ratio(found(), "diloco")
    assert time is not None
    assert sent is not None
    assert time.values == (0.5, math.inf, 0.0)
    assert sent.values == (0.1,)
    never = report.time_ratio(found(), "downpour")
    assert never is not None
    assert never.values == (math.inf, math.inf)  # of the round in which neither reached it nothing is known
    assert report.bytes_ratio(found(), "downpour") is None


def test_the_report_says_who_never_reached_the_target_and_what_holds() -> None:
    text = report.markdown([found()], LIMIT_S, ("0.10", "0.20"))
    assert "| diloco | 2 of 3 | 10.0 | 10.0..inf | 0.50 (0.00..inf) | 4.0 | 0.10 (0.10..0.10) | 3,000 | 0.920 |" in text
    assert "- downpour: never reached it; at best 0.400" in text
    assert "- parallel_sgd: seed 0: it failed" in text
    where = "100 Mbit/s, digits, to 90.0% of the test images"
    assert f"| diloco: sooner than sync, {where} | 0.50 | 0.00..inf | holds, not in every round |" in text
    assert f"| downpour: sooner than sync, {where} | inf | inf..inf | **does not hold** |" in text
    assert f"| downpour: fewer bytes than sync, {where} | - | - | no round tells" in text
    assert '- digits, diloco: `{"name": "diloco", "average_every": 20}`, AdamW at 0.002, minibatches of 16' in text
