"""A run without a server."""

import errno
import os
from pathlib import Path

import pytest

from service.errors import StorageFull
from service.jobs.local import LocalRun
from service.spec import parse_spec
from tests.service.fakes import FakeRun, FakeRuns, whole_run
from trainers.errors import Fenced, SpecRejected
from trainers.events import Event, State
from trainers.runtime.event_log import EventLogReader, Fence

SPEC = parse_spec({"epochs": 2})


def local(runs: FakeRuns, run_dir: Path) -> LocalRun:
    return LocalRun(runs, "job", SPEC, run_dir)


def test_it_tells_every_event_once_and_hands_back_the_result(runs: FakeRuns, tmp_path: Path) -> None:
    runs.script = whole_run
    seen: list[Event] = []
    result = local(runs, tmp_path).run(seen.append)
    assert (result.state, result.test_accuracy) == (State.SUCCEEDED, 0.97)
    assert seen == list(EventLogReader(tmp_path).read())
    assert runs.swept == []


def test_cancel_is_passed_on_and_waited_for(runs: FakeRuns, tmp_path: Path) -> None:
    def until_cancelled(run: FakeRun) -> None:
        run.state(State.RUNNING)
        run.cancel = lambda: run.state(State.CANCELLED, "Cancelled", "at step 5")  # type: ignore[method-assign]

    runs.script = until_cancelled
    run = local(runs, tmp_path)
    result = run.run(lambda _: run.cancel())
    assert (result.state, result.message) == (State.CANCELLED, "at step 5")
    assert runs.swept == []


def test_a_dead_coordinator_ends_the_waiting(runs: FakeRuns, tmp_path: Path) -> None:
    runs.script = lambda run: run.die(torn=b'{"seq"')
    result = local(runs, tmp_path).run(lambda _: None)
    assert result.state is State.FAILED
    assert "coordinator died" in result.message
    assert runs.swept == ["job"]


def test_a_coordinator_that_seemed_dead_writes_nothing_behind_the_end(runs: FakeRuns, tmp_path: Path) -> None:
    coordinator = Fence.take(tmp_path)
    runs.script = lambda run: run.die()
    local(runs, tmp_path).run(lambda _: None)
    with pytest.raises(Fenced):
        coordinator.check()


def test_a_run_whose_end_cannot_be_written_ends_with_a_sentence(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    runs.script = lambda run: run.die()
    monkeypatch.setattr("service.jobs.local.append_status", full)
    sentence = r"the end of the run cannot be written into .* \(No space left on device\): the run's coordinator died;"
    with pytest.raises(StorageFull, match=sentence):
        local(runs, tmp_path).run(lambda _: None)
    assert runs.swept == ["job"]


def test_whatever_interrupts_takes_the_run_down(runs: FakeRuns, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.data["state"] == "RUNNING":
            raise KeyboardInterrupt

    runs.script = lambda run: run.state(State.RUNNING)
    run = local(runs, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.run(interrupt)
    assert runs.swept == ["job"]
    assert [event.data["state"] for event in EventLogReader(tmp_path).read()] == ["RUNNING", "FAILED"]
    assert run.result.state is State.FAILED


def test_a_run_that_is_refused_at_its_start_says_why(runs: FakeRuns, tmp_path: Path) -> None:
    runs.start_error = SpecRejected("code: there is no folder /nowhere")
    run = local(runs, tmp_path)
    with pytest.raises(SpecRejected):
        run.run(lambda _: None)
    (event,) = EventLogReader(tmp_path).read()
    assert (event.data["reason"], event.data["message"]) == ("SpecRejected", "code: there is no folder /nowhere")
    assert run.result.state is State.FAILED


def test_one_silence_is_no_death(runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([False, True])
    monkeypatch.setattr("service.jobs.local.ALIVE_EVERY_S", 0.0)

    def silent_once(run: FakeRun) -> None:
        run.state(State.RUNNING)

        def is_alive() -> bool:
            alive = next(answers, True)
            if alive:
                run.succeed()
            return alive

        run.is_alive = is_alive  # type: ignore[method-assign]

    runs.script = silent_once
    assert local(runs, tmp_path).run(lambda _: None).state is State.SUCCEEDED
