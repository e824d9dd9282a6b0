"""What was predicted of a run against what its log tells, and what a run does for that."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cost.test_planning import profile_of
from tests.runtime.runs import finished, spec
from trainers.cost.kept import keep_profile, kept_profile
from trainers.cost.predicting import predict
from trainers.events import Event, Result
from trainers.prediction import Prediction, profiles_folder
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.onlookers import predictions
from trainers.runtime.control.onlookers.predictions import compare

PREDICTED = Prediction(
    workers=2, examples_per_s=50.0, basis="20 steps timed",
    parts={"computing": 0.02, "data": 0.001, "exchanges and waits": 0.01},
)  # fmt: skip


def log(*entries: tuple[float, str, dict[str, Any]]) -> list[Event]:
    return [Event(seq=i, time=time, type=kind, data=data) for i, (time, kind, data) in enumerate(entries, 1)]


def step(time: float, examples: int, computing: float = 1.0, waits: float = 3.0) -> tuple[float, str, dict[str, Any]]:
    counted = {"compute_s": computing, "wait_data_s": 0.1, "wait_communication_s": waits}
    return time, "step", {"examples": examples, "workers": 2} | counted


def begun(workers: int = 2, node: str = "here") -> tuple[float, str, dict[str, Any]]:
    return 0.0, "actors", {"workers": [{"name": f"worker/{rank}", "node_id": node} for rank in range(workers)]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_rate_and_parts_between_the_reports_of_as_many_workers() -> None:
    found = compare(log(begun(), step(2, 100, 99.0), step(4, 180), step(6, 260)), PREDICTED, "here")
    assert found is not None
    assert (found.measured_per_s, found.predicted_per_s) == (40.0, 50.0)
    assert found.off == pytest.approx(0.25)
    assert found.parts["computing"].measured_s == pytest.approx(2 / 160)  # not what came before the first report
    assert found.parts["exchanges and waits"].measured_s == pytest.approx(6 / 160)
    assert found.furthest_off == "exchanges and waits"
    assert found.sentence.startswith("50 examples a second were predicted from ")
    assert "and 40 were measured: the prediction is 25.0% too high" in found.sentence
    worst = "furthest off: exchanges and waits, with 10 ms of a worker for an example predicted, and 37.5 ms measured"
    assert found.sentence.endswith(worst)


@pytest.mark.parametrize(
    ("off", "words"), [(4.2, "5.2 times the rate"), (0.031, "3.1% too high"), (-0.25, "25.0% too low")]
)
def test_how_far_it_is_off_is_said_in_words(off: float, words: str) -> None:
    found = compare(log(begun(), step(2, 100, 99.0), step(4, 180), step(6, 260)), PREDICTED, "here")
    assert found is not None
    assert f"the prediction is {words};" in found.model_copy(update={"off": off}).sentence


def test_a_pause_other_numbers_of_workers_and_other_nodes_are_left_out() -> None:
    paused = [(5.0, "state", {"state": "PAUSED"}), step(95, 300), step(96, 340)]
    resized = [(97.0, "resize", {"workers": 3}), step(98, 900), step(99, 1500)]
    found = compare(log(begun(), step(2, 100), step(4, 180), *paused, *resized), PREDICTED, "here")
    assert found is not None
    assert found.measured_per_s == pytest.approx((80 + 40) / 3)
    assert compare(log(begun(3), step(2, 100), step(4, 180)), PREDICTED, "here") is None
    assert compare(log(begun(), step(2, 100)), PREDICTED, "here") is None
    assert compare(log(begun(node="there"), step(2, 100), step(4, 180)), PREDICTED, "here") is None


@pytest.mark.usefixtures("home")
def test_a_kept_profile_is_found_by_what_decides_about_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept_profile(spec()) is None
    mine, other = profile_of(spec()), profile_of(spec(batch=8), device="e")
    keep_profile(spec(), mine)
    keep_profile(spec(batch=8), other)
    downpour = spec(algorithm="downpour", optimizer={"name": "momentum", "lr": 7.0}, seed=5)
    for same in (spec(), downpour):
        found = kept_profile(same)
        assert found is not None
        assert (found.device, found.work.num_states) == ("d", 1)
        assert predict(same, found).examples_per_s > 0
    late = kept_profile(spec(algorithm={"name": "downpour", "server_rule": "delay_compensated"}))
    assert late is not None
    assert late.work.num_states > 1  # of the spec that asks
    assert kept_profile(spec(batch=9)) is None
    assert kept_profile(spec(optimizer="sgd")) is None
    monkeypatch.setattr("trainers.cost.kept.processor", lambda: "another")
    assert kept_profile(spec()) is None


@pytest.mark.usefixtures("home")
def test_a_file_that_is_no_profile_is_none() -> None:
    keep_profile(spec(), profile_of(spec()))
    (path,) = profiles_folder().glob("*.json")
    path.write_text("{")
    assert kept_profile(spec()) is None


def test_a_run_without_a_kept_profile_imports_and_starts_nothing_for_it(home: Path) -> None:
    program = """
import asyncio, sys, threading
from pathlib import Path
from trainers import TrainSpec
from trainers.runtime.control import controller, parts
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.onlookers.predictions import Predictions
before, threads = set(sys.modules), threading.active_count()
run = Predictions(RunConfig("job", TrainSpec(), Path("run")), None)
asyncio.run(run.prepare(is_first=True))
asyncio.run(run.compare())
assert run.found is None
print(sorted(set(sys.modules) - before), threading.active_count() - threads)
print([name for name in sys.modules if name.startswith(("trainers.cost", "torch"))])
"""
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("[] 0\n[]\n", "")


class Told:
    """A log that remembers, of a run whose rate cannot be predicted."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def line(self, level: str, message: str) -> None:
        self.lines.append(f"{level}: {message}")


@pytest.mark.usefixtures("home")
def test_what_goes_wrong_with_a_profile_is_told_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def raises(*_: object, **__: object) -> None:
        raise OSError("no such disk")

    told = Told()
    found = predictions.Predictions(RunConfig("job", spec(predict="timed"), tmp_path), told)  # type: ignore[arg-type]
    monkeypatch.setattr(found, "_once", raises)
    asyncio.run(found.prepare(is_first=False))
    assert told.lines == []
    asyncio.run(found.prepare(is_first=True))
    assert told.lines[1:] == ["warning: no profile was made: no such disk"]


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_run_times_a_step_where_it_is_asked_to_and_its_result_compares(
    tmp_path: Path,
) -> None:
    train = spec(workers=2, predict="timed", epochs=60, report_every_s=0.05, batch=13)
    assert kept_profile(train) is None
    try:
        run = finished("predicted", train, tmp_path / "run")
        assert kept_profile(train) is not None
    finally:
        for path in profiles_folder().glob("*.json"):
            if f'"batch.per_worker": {train.batch.per_worker}' in path.read_text():
                path.unlink()
    result = Result.model_validate(run.of("result")[0])
    assert result.predicted is not None, run.of("log")
    assert result.predicted.basis == "20 steps timed"
    assert result.predicted.workers == 2
    assert result.predicted.measured_per_s > 0
