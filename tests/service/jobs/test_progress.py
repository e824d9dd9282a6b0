"""The figures that are read off a log."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.cli.display import evaluation_line
from service.database.job_store import Job
from service.jobs.progress import Progress, log_line
from service.jobs.reader import current
from service.jobs.views import view
from service.spec import parse_spec
from service.tracking.scalars import Scalars
from tests.service.fakes import FakeRun, whole_run
from trainers.events import Event, State, at_work_s
from trainers.runtime.event_log import EventLogReader

SPEC = parse_spec({"algorithm": "downpour", "epochs": 4})


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    found = FakeRun("job", SPEC.train, tmp_path)
    yield found
    found.journal.file.close()


def folded(run: FakeRun, times: dict[int, float] | None = None) -> Progress:
    progress = Progress()
    for event in EventLogReader(run.run_dir).read():
        progress.add(event.model_copy(update={"time": (times or {}).get(event.seq, float(event.seq))}))
    return progress


def test_share_and_eta_follow_the_mean_pace(run: FakeRun) -> None:
    run.state(State.RUNNING)
    run.step(0.5)
    assert folded(run).eta_s(4, now=2.0) is None  # one report is no pace
    run.step(1.5)
    progress = folded(run, {2: 10.0, 3: 20.0})
    assert progress.fraction(4) == 1.5 / 4
    assert progress.eta_s(4, now=20.0) == pytest.approx(25.0)  # 2.5 epochs at 10 s an epoch
    assert progress.eta_s(4, now=26.0) == pytest.approx(19.0)
    assert progress.eta_s(4, now=999.0) == 0.0
    run.state(State.FAILED)
    progress = folded(run)
    assert (progress.eta_s(4), progress.fraction(4)) == (None, 1.5 / 4)


@pytest.mark.parametrize(
    ("state", "has_eta"), [(State.RUNNING, True), (State.PAUSING, False), (State.CANCELLING, False)]
)
def test_a_job_that_stops_has_workers_but_no_time_left(run: FakeRun, state: State, has_eta: bool) -> None:
    run.emit("actors", workers=[{"name": "job/worker/0"}], shards=[])
    run.state(State.RUNNING)
    run.step(0.5)
    run.step(1.5)
    told = {"message": "", "reason": "", "notes": "", "forked_from": None, "run_dir": run.run_dir}
    told |= {"user": "", "project": "", "labels": {}, "priority": 0, "archived": False, "created": 0.0}
    job = Job.model_construct(id="job", name="job", spec=SPEC.model_dump(), state=state, finished=None, **told)
    shown = view(job, folded(run), None, SPEC)
    assert (shown.eta_s is not None, shown.workers) == (has_eta, 1)


def test_a_metric_that_has_no_value_is_told_as_none(run: FakeRun) -> None:
    """A mean over nothing: the log, which is JSON, has null."""
    found = {"test_loss": 0.5, "test_far": math.nan, "headline": "far", "higher_is_better": False}
    run.emit("evaluation", epoch=1, examples=100, set="test", **found)
    progress = folded(run)
    (event,) = EventLogReader(run.run_dir).read()
    assert Scalars().points(event) == {"test/loss": 0.5}
    assert (progress.headline, progress.curve.values) == (None, [])
    result = progress.result_so_far("job", SPEC.model_dump(mode="json"))
    assert (result.metrics, result.headline) == ({"loss": 0.5, "far": None}, "far")
    assert evaluation_line(event).endswith("test loss 0.5000  test far none")


def test_a_failed_run_has_a_result_too(run: FakeRun) -> None:
    run.emit("actors", workers=[{"name": "job/worker/0"}, {"name": "job/worker/1"}], shards=[{"name": "job/shard/0"}])
    run.step(1.0, loss=0.8)
    run.evaluation(1, 0.91)
    run.emit("epoch", epoch=1, examples=1000, train_loss=0.75, learning_rate=0.1)
    run.state(State.FAILED, "LossNotFinite", "the loss became NaN at step 120")
    progress = folded(run)
    result = progress.result_so_far("job", SPEC.model_dump(mode="json"))
    assert (result.state, result.epochs, result.examples, result.workers) == (State.FAILED, 1.0, 1000, 2)
    assert (result.test_accuracy, result.train_loss, result.algorithm) == (0.91, 0.75, "downpour")
    assert (result.message, result.model_path) == ("the loss became NaN at step 120", None)
    assert progress.workers == ["job/worker/0", "job/worker/1"]


def test_a_run_that_ended_well_tells_its_own_result(run: FakeRun) -> None:
    whole_run(run)
    progress = folded(run)
    assert progress.fraction(4) == 1.0
    result = progress.result_so_far("job", SPEC.model_dump(mode="json"))
    assert (result.wall_s, result.test_accuracy, result.message) == (10.0, 0.97, "trained to the end")
    assert Progress.model_validate(progress.model_dump(mode="json")) == progress


def test_log_lines_are_for_people() -> None:
    event = Event(seq=1, time=0.0, type="log", data={"level": "warning", "message": "slow"})
    assert log_line(event) == f"{log_line(event)[:19]} WARNING slow"  # type: ignore[index]
    assert log_line(Event(seq=2, time=0.0, type="epoch", data={})) is None
    died = Event(seq=3, time=0.0, type="fault", data={"actor": "job/worker/1", "why": "died", "examples": 7})
    assert str(log_line(died))[20:] == "FAULT worker/1 died"
    fewer = Event(seq=4, time=0.0, type="resize", data={"workers": 2, "joined": [], "left": ["job/worker/1"]})
    assert str(log_line(fewer))[20:] == "RESIZE 2 workers; left: worker/1"
    more = fewer.model_copy(update={"data": {"workers": 3, "joined": ["job/worker/2"], "left": [], "batch": 96}})
    assert str(log_line(more))[20:] == "RESIZE 3 workers, batch 96; joined: worker/2"


def test_time_at_work_is_that_of_all_lives_and_not_that_of_pauses() -> None:
    lives = [("STARTING", 0.0), ("RUNNING", 5.0), ("PAUSED", 20.0), ("QUEUED", 86_000.0), ("STARTING", 86_400.0)]
    lives += [("RUNNING", 86_405.0), ("FAILED", 86_407.0)]
    events = [
        Event(seq=seq, time=time, type="state", data={"state": state, "reason": "", "message": ""})
        for seq, (state, time) in enumerate(lives, 1)
    ]
    progress = Progress()
    for event in events:
        progress.add(event)
    assert progress.result_so_far("job", SPEC.model_dump()).wall_s == 27.0
    assert (at_work_s(events, until=1e9), at_work_s(events[:-1], until=86_407.0)) == (27.0, 27.0)


def test_who_trains_is_told_as_of_the_last_resize(run: FakeRun) -> None:
    run.emit("actors", workers=[{"name": "job/worker/0"}, {"name": "job/worker/1"}], shards=[])
    run.state(State.RUNNING, "Training", "2 workers train")
    run.step(1.0, workers=2)
    run.emit("resize", workers=1, joined=[], left=["job/worker/1"], nodes=[], examples=10)
    run.journal.close()
    progress = folded(run)
    assert (progress.message, progress.result_so_far("job", SPEC.model_dump()).workers) == ("1 worker trains", 1)
    running = Job.model_construct(state=State.RUNNING, message="2 workers train")
    active: Any = SimpleNamespace(log=SimpleNamespace(progress=progress, ended=False))
    assert current(running, active)[0].message == "1 worker trains", "the store knows its state, which has not changed"


@pytest.mark.parametrize(
    ("joined", "said"),
    [(0, "2 of 4 workers train; the others join when there is room"), (1, "3 of 4"), (2, "4 workers train")],
)
def test_who_trains_says_how_many_were_asked_for(run: FakeRun, joined: int, said: str) -> None:
    run.emit("actors", workers=[{"name": "job/worker/0"}, {"name": "job/worker/1"}], shards=[])
    run.state(State.RUNNING, "Training", "2 workers train")
    run.emit("log", level="info", message="is to train with 4 workers", wanted=4)
    if joined:
        names = [f"job/worker/{2 + index}" for index in range(joined)]
        run.emit("resize", workers=2 + joined, joined=names, left=[], nodes=[], examples=10)
    assert folded(run).message.startswith(said)
    run.state(State.STARTING)
    run.state(State.RUNNING, "Training", "2 workers train")
    run.emit("resize", workers=1, joined=[], left=["job/worker/1"], nodes=[], examples=10)
    run.journal.close()
    assert folded(run).message == "1 worker trains", "what was asked of an earlier life counts no longer"
