"""The store: every configuration once, every change of state from a state that it names."""

from pathlib import Path

import pytest

from service import LocalSweep, SpecInvalid, StateConflict, TrialStore, parse_sweep
from service.status import Status
from service.sweeps import control
from service.sweeps.log import SweepLog
from service.sweeps.trial_curve import TrialCurve
from service.sweeps.trial_store import Ending, TrialState
from service.sweeps.views import evidence, view
from trainers import Event, EventLogReader, State

SPEC = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [0, 1, 2]}})
DONE = Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message="trained")
STOP = Ending(state=TrialState.STOPPED, reason="Asha", message="not among the best")


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    return control.begin(tmp_path / "sweep", "sweep-1", SPEC)


def test_trials_are_handed_out_in_order_and_end_once(store: TrialStore) -> None:
    ids = [row.id for row in store.trials()]
    first = store.next_queued(but=())
    assert first is not None
    assert first.id == ids[0]
    second = store.next_queued(but={ids[0]})
    assert second is not None
    assert second.id == ids[1]
    assert store.begin(ids[0])
    assert not store.begin(ids[0])
    assert store.finish(ids[0], DONE, 0.1)
    assert not store.finish(ids[0], STOP)
    row = store.trial(ids[0])
    assert row is not None
    assert (row.state, row.error, row.starts) == (TrialState.SUCCEEDED, 0.1, 1)


def test_what_was_interrupted_waits_again_and_keeps_its_place(store: TrialStore) -> None:
    ids = [row.id for row in store.trials()]
    store.begin(ids[0])
    store.note(ids[0], 0.5, 0.2)
    store.requeue(ids[0])
    row = store.next_queued(but=())
    assert row is not None
    assert (row.id, row.starts, row.fraction) == (ids[0], 1, 0.5)


def test_a_trial_that_is_asked_to_stop_ends_as_that(store: TrialStore) -> None:
    ids = [row.id for row in store.trials()]
    store.begin(ids[0])
    assert store.ask(ids[0], STOP)
    assert store.asked(ids[0]) == STOP
    assert store.finish(ids[0], Ending(state=TrialState.CANCELLED, reason="Cancelled", message=""))
    assert store.ask(ids[1], STOP)  # it waits: at once
    assert [row.state for row in store.trials()] == ["STOPPED", "STOPPED", "QUEUED"]
    assert not store.ask(ids[1], STOP)
    with pytest.raises(StateConflict):
        control.stop_trial(store, ids[1])


def test_a_trial_that_ends_well_before_it_hears_of_stopping_has_ended_well(store: TrialStore) -> None:
    trial = store.trials()[0].id
    store.begin(trial)
    store.ask(trial, STOP)
    store.finish(trial, DONE)
    assert store.trials()[0].state is TrialState.SUCCEEDED


def test_the_books_close_only_when_nothing_is_left_and_an_extension_opens_them(store: TrialStore) -> None:
    end = Status(State.SUCCEEDED, "Succeeded", "all done")
    assert not store.close(end)
    for row in store.trials():
        store.begin(row.id)
        store.finish(row.id, DONE)
    assert store.close(end)
    assert store.state is State.SUCCEEDED
    assert control.extend(store, {"seed": [0, 2]}) == []
    assert store.state is State.SUCCEEDED  # nothing new
    assert len(control.extend(store, {"seed": [2, 3, 4]})) == 2
    assert store.state is State.QUEUED
    assert [row.number for row in store.trials()] == [1, 2, 3, 4, 5]
    assert store.spec.axes["seed"] == (0, 1, 2, 3, 4)


def test_an_extension_that_is_refused_changes_nothing(store: TrialStore) -> None:
    with pytest.raises(SpecInvalid):
        control.extend(store, {"speed": [1]})
    assert len(store.trials()) == 3
    assert set(store.spec.axes) == {"seed"}


def test_a_sweep_is_cancelled_resumed_and_shown(store: TrialStore) -> None:
    with pytest.raises(StateConflict):
        control.resume(store)
    control.cancel(store)
    assert store.state is State.CANCELLING
    control.cancel(store)  # again: nothing new
    with pytest.raises(StateConflict):
        control.extend(store, {"seed": [7]})
    shown = view(store)
    assert (shown.trials["queued"], shown.progress, len(shown.results)) == (3, 0.0, 3)
    assert evidence(store).trials[0].state == "QUEUED"


def test_the_log_tells_progress_and_what_others_changed(store: TrialStore) -> None:
    log = SweepLog(store)
    store.begin(store.trials()[0].id)
    log.changes()
    log.changes()
    log.progress(at_once=True)
    log.progress(at_once=True)
    log.close()
    events = list(EventLogReader(store.folder).read())
    assert [event.type for event in events] == ["trial", "progress"]
    assert events[1].data["total"] == 3
    assert events[1].data["running"] == 1


def event(seq: int, at: float, kind: str, **data: object) -> Event:
    return Event.model_validate({"seq": seq, "time": at, "type": kind, "data": data})


def test_a_curve_over_two_starts_counts_no_time_between_them_and_each_epoch_once() -> None:
    curve = TrialCurve()
    figures = {"examples": 100, "test_loss": 0.4}
    events = [
        event(1, 0.0, "state", state="STARTING"),
        event(2, 5.0, "step"),
        event(3, 7.0, "epoch", epoch=1, examples=100, train_loss=0.9),
        event(4, 8.0, "evaluation", epoch=1, test_accuracy=0.5, **figures),
        event(5, 100.0, "state", state="STARTING"),
        event(6, 120.0, "step"),
        event(7, 123.0, "epoch", epoch=1, examples=100, train_loss=0.8),
        event(8, 124.0, "evaluation", epoch=1, test_accuracy=0.6, **figures),
        event(9, 125.0, "state", state="SUCCEEDED", reason="Succeeded", message="trained"),
    ]
    events.remove(events[4])
    assert [curve.add(one) for one in events].count(True) == 2
    (point,) = curve.points
    assert (point.epoch, point.examples, point.test_error) == (1, 100, pytest.approx(0.4))
    assert curve.error == pytest.approx(0.4)
    assert curve.final == Status(State.SUCCEEDED, "Succeeded", "trained")


def test_the_same_folder_goes_on_and_is_extended_but_not_with_another_job(tmp_path: Path) -> None:
    first = LocalSweep.open(SPEC, tmp_path / "here").store
    trials = [row.id for row in first.trials()]
    more = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [2, 3]}, "limits": {"trials": 50}})
    again = LocalSweep.open(more, tmp_path / "here").store
    assert [row.id for row in again.trials()][:3] == trials
    assert len(again.trials()) == 4
    assert again.spec.limits.trials == 50
    other = parse_sweep({"job": {"workers": 1, "epochs": 9}, "axes": {"seed": [2]}})
    with pytest.raises(SpecInvalid, match="another folder"):
        LocalSweep.open(other, tmp_path / "here")
