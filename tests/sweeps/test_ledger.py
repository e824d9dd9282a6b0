"""The ledger: every configuration once, every change of state from a state that it names."""

from pathlib import Path

import pytest

from service import Ledger, LocalSweep, SpecInvalid, StateConflict, parse_sweep
from service.sweeps import control
from service.sweeps.curve import Curve
from service.sweeps.ledger import Ending, TrialState
from service.sweeps.log import SweepLog
from service.sweeps.view import evidence, view
from trainers import Event, JournalReader, State

SPEC = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [0, 1, 2]}})
DONE = Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message="trained")
STOP = Ending(state=TrialState.STOPPED, reason="Asha", message="not among the best")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return control.begin(tmp_path / "sweep", "sweep-1", SPEC)


def test_trials_are_handed_out_in_order_and_end_once(ledger: Ledger) -> None:
    ids = [row.id for row in ledger.trials()]
    first = ledger.waiting(but=())
    assert first is not None
    assert first.id == ids[0]
    second = ledger.waiting(but={ids[0]})
    assert second is not None
    assert second.id == ids[1]
    assert ledger.begin(ids[0])
    assert not ledger.begin(ids[0])
    assert ledger.finish(ids[0], DONE, 0.1)
    assert not ledger.finish(ids[0], STOP)
    row = ledger.trial(ids[0])
    assert row is not None
    assert (row.state, row.error, row.starts) == (TrialState.SUCCEEDED, 0.1, 1)


def test_what_was_interrupted_waits_again_and_keeps_its_place(ledger: Ledger) -> None:
    ids = [row.id for row in ledger.trials()]
    ledger.begin(ids[0])
    ledger.note(ids[0], 0.5, 0.2)
    ledger.put_back(ids[0])
    row = ledger.waiting(but=())
    assert row is not None
    assert (row.id, row.starts, row.share) == (ids[0], 1, 0.5)


def test_a_trial_that_is_asked_to_stop_ends_as_that(ledger: Ledger) -> None:
    ids = [row.id for row in ledger.trials()]
    ledger.begin(ids[0])
    assert ledger.ask(ids[0], STOP)
    assert ledger.asked(ids[0]) == STOP
    assert ledger.finish(ids[0], Ending(state=TrialState.CANCELLED, reason="Cancelled", message=""))
    assert ledger.ask(ids[1], STOP)  # it waits: at once
    assert [row.state for row in ledger.trials()] == ["STOPPED", "STOPPED", "QUEUED"]
    assert not ledger.ask(ids[1], STOP)
    with pytest.raises(StateConflict):
        control.stop_trial(ledger, ids[1])


def test_a_trial_that_ends_well_before_it_hears_of_stopping_has_ended_well(ledger: Ledger) -> None:
    trial = ledger.trials()[0].id
    ledger.begin(trial)
    ledger.ask(trial, STOP)
    ledger.finish(trial, DONE)
    assert ledger.trials()[0].state is TrialState.SUCCEEDED


def test_the_books_close_only_when_nothing_is_left_and_an_extension_opens_them(ledger: Ledger) -> None:
    end = (State.SUCCEEDED, "Succeeded", "all done")
    assert not ledger.close_books(*end)
    for row in ledger.trials():
        ledger.begin(row.id)
        ledger.finish(row.id, DONE)
    assert ledger.close_books(*end)
    assert ledger.state is State.SUCCEEDED
    assert control.extend(ledger, {"seed": [0, 2]}) == []
    assert ledger.state is State.SUCCEEDED  # nothing new
    assert len(control.extend(ledger, {"seed": [2, 3, 4]})) == 2
    assert ledger.state is State.QUEUED
    assert [row.number for row in ledger.trials()] == [1, 2, 3, 4, 5]
    assert ledger.spec.axes["seed"] == (0, 1, 2, 3, 4)


def test_an_extension_that_is_refused_changes_nothing(ledger: Ledger) -> None:
    with pytest.raises(SpecInvalid):
        control.extend(ledger, {"speed": [1]})
    assert len(ledger.trials()) == 3
    assert set(ledger.spec.axes) == {"seed"}


def test_a_sweep_is_cancelled_resumed_and_shown(ledger: Ledger) -> None:
    with pytest.raises(StateConflict):
        control.resume(ledger)
    control.cancel(ledger)
    assert ledger.state is State.CANCELLING
    control.cancel(ledger)  # again: nothing new
    with pytest.raises(StateConflict):
        control.extend(ledger, {"seed": [7]})
    shown = view(ledger)
    assert (shown.trials["queued"], shown.progress, len(shown.results)) == (3, 0.0, 3)
    assert evidence(ledger).trials[0].state == "QUEUED"


def test_the_log_tells_progress_and_what_others_changed(ledger: Ledger) -> None:
    log = SweepLog(ledger)
    ledger.begin(ledger.trials()[0].id)
    log.changes()
    log.changes()
    log.progress(at_once=True)
    log.progress(at_once=True)
    log.close()
    events = list(JournalReader(ledger.folder).read())
    assert [event.type for event in events] == ["trial", "progress"]
    assert events[1].data["total"] == 3
    assert events[1].data["running"] == 1


def event(seq: int, at: float, kind: str, **data: object) -> Event:
    return Event.model_validate({"seq": seq, "time": at, "type": kind, "data": data})


def test_a_curve_over_two_starts_counts_no_time_between_them_and_each_epoch_once() -> None:
    curve = Curve()
    figures = {"examples": 100, "test_loss": 0.4}
    told = [
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
    told.remove(told[4])
    assert [curve.add(one) for one in told].count(True) == 2
    (point,) = curve.points
    assert (point.epoch, point.examples, point.test_error) == (1, 100, pytest.approx(0.4))
    assert curve.error == pytest.approx(0.4)
    assert curve.ended == (State.SUCCEEDED, "Succeeded", "trained")


def test_the_same_folder_goes_on_and_is_extended_but_not_with_another_job(tmp_path: Path) -> None:
    first = LocalSweep.open(SPEC, tmp_path / "here").ledger
    trials = [row.id for row in first.trials()]
    more = parse_sweep({"job": {"workers": 1}, "axes": {"seed": [2, 3]}, "limits": {"trials": 50}})
    again = LocalSweep.open(more, tmp_path / "here").ledger
    assert [row.id for row in again.trials()][:3] == trials
    assert len(again.trials()) == 4
    assert again.spec.limits.trials == 50
    other = parse_sweep({"job": {"workers": 1, "epochs": 9}, "axes": {"seed": [2]}})
    with pytest.raises(SpecInvalid, match="another folder"):
        LocalSweep.open(other, tmp_path / "here")
