"""A trial's process that outlives its driver: killed where it can be found, and ended by itself where it is late."""

import fcntl
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from service import TrialStore, parse_sweep
from service.sweeps import control
from service.sweeps.trial import TrialRun
from service.sweeps.trial_process import FOLDER, DriverReplaced, TrialProcess, end_orphans, forget_processes
from service.sweeps.trial_store import TrialState
from trainers import DataNotFound, WarmRunner

HOLDS = """
import sys, time
from pathlib import Path
from unittest.mock import Mock
from service import TrialStore
from service.sweeps.trial_process import TrialProcess
process = TrialProcess(TrialStore(Path(sys.argv[1])), int(sys.argv[2]))
print("holds", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def store(tmp_path: Path) -> TrialStore:
    return control.begin(tmp_path / "sweep", "sweep-1", parse_sweep({"job": {"workers": 1}, "axes": {"seed": [0, 1]}}))


def test_a_new_driver_kills_what_the_dead_one_left_before_it_goes_on(store: TrialStore) -> None:
    first = store.new_driver()
    command = [sys.executable, "-c", HOLDS, str(store.folder), str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as orphan:
        assert orphan.stdout is not None
        assert orphan.stdout.readline() == "holds\n"
        store.new_driver()
        end_orphans(store)
        assert orphan.wait() == -9
    assert not list((store.folder / FOLDER).iterdir())
    end_orphans(store)  # there is none


def test_a_process_that_only_has_the_number_of_one_elsewhere_is_left_alone(
    store: TrialStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        path = store.folder / FOLDER / str(innocent.pid)
        path.parent.mkdir()
        held = path.open("w")  # as on another host
        fcntl.flock(held, fcntl.LOCK_EX)
        monkeypatch.setattr("service.sweeps.trial_process.time.sleep", lambda _: held.close())
        end_orphans(store)
        assert innocent.communicate(b"\n") == (None, None)
    assert innocent.returncode == 0
    assert not path.exists()


def test_a_process_that_starts_after_its_driver_was_replaced_begins_no_trial(store: TrialStore) -> None:
    late = {"folder": str(store.folder), "trial": store.trials()[0].id, "driver": store.new_driver()}
    store.new_driver()
    with pytest.raises(DriverReplaced, match="driver 2 runs the sweep; 1 started this process"):
        TrialRun(late)
    assert {row.state for row in store.trials()} == {TrialState.QUEUED}
    assert not any(store.run_dir(row.id).exists() for row in store.trials())


def test_a_process_goes_on_with_another_trial_only_for_its_own_driver(store: TrialStore) -> None:
    process = TrialProcess(store, store.new_driver())
    process.check()
    store.new_driver()
    with pytest.raises(DriverReplaced):
        process.check()
    process.file.close()
    forget_processes(store)
    assert not (store.folder / FOLDER).exists()
    assert store.driver == 2


def test_a_sweep_of_an_earlier_millrace_has_had_no_driver_with_a_number(store: TrialStore) -> None:
    assert store.driver == 0
    assert store.new_driver() == 1


class WithoutData(TrialRun):
    """A trial that fails as soon as it is begun."""

    def new_runner(self) -> WarmRunner:
        runner = Mock(spec=WarmRunner, is_idle=True)
        runner.start.side_effect = DataNotFound("there is none")
        return runner


def test_a_trial_begins_with_the_first_step_since_tune_may_give_it_to_another_process_before(store: TrialStore) -> None:
    trial = store.trials()[0].id
    ready = WithoutData({"folder": str(store.folder), "trial": trial, "driver": store.new_driver()})
    assert store.begin(trial)  # as the other process does
    ready.cleanup()
    store.requeue(trial)
    ready.reset_config({"folder": str(store.folder), "trial": trial})
    assert [row.state for row in store.trials()] == [TrialState.QUEUED] * 2
    assert ready.step()["ended"][1] == "DataNotFound"
    assert [row.state for row in store.trials()] == [TrialState.RUNNING, TrialState.QUEUED]  # the driver ends it
    ready.process.file.close()
