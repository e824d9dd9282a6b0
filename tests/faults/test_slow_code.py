"""What takes long is no fault: data that opens slowly, first steps of minutes, code that holds Python's lock."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.test_workers import CODE
from tests.runtime.runs import finished, gone_soon, soon, start
from trainers import ClusterInfo, SpecRejected, TrainSpec, preflight

pytestmark = pytest.mark.long


def spec(**fields: Any) -> TrainSpec:
    base: dict[str, Any] = {
        "code": CODE,
        "data": "slow:small",
        "model": "slow:slow",
        "workers": 2,
        "batch": 16,
        "epochs": 2,
        "evaluate": {"every_epochs": 0},
        "checkpoint": {"every_epochs": 0},
    }
    return TrainSpec.model_validate(base | fields)


def test_data_that_takes_long_to_open_is_waited_for_and_the_state_says_so(cluster: ClusterInfo, tmp_path: Path) -> None:
    watched = finished("slow-data", spec(data="slow:late"), tmp_path)
    assert watched.events[-1].data["state"] == "SUCCEEDED", watched.events[-3:]
    assert watched.of("fault") == []
    waits = [data["message"] for data in watched.of("state") if data["reason"] == "Preparing"]
    assert len(waits) >= 2
    assert "worker/" in waits[-1], waits
    assert "opens the dataset slow:late" in waits[-1]
    gone_soon(watched.run.job_id, [])


def test_first_steps_of_many_seconds_are_no_hang(cluster: ClusterInfo, tmp_path: Path) -> None:
    model = {"name": "slow:slow", "kwargs": {"sleep_s": 12}}
    watched = finished("slow-step", spec(model=model, algorithm="downpour"), tmp_path)
    assert watched.events[-1].data["state"] == "SUCCEEDED", watched.events[-3:]
    assert watched.of("fault") == []


def test_code_that_holds_the_lock_of_python_is_left_alone(cluster: ClusterInfo, tmp_path: Path) -> None:
    model = {"name": "slow:slow", "kwargs": {"hold_s": 7, "minibatches": 3}}
    watched = finished("slow-lock", spec(model=model), tmp_path)
    assert watched.events[-1].data["state"] == "SUCCEEDED", watched.events[-3:]
    assert watched.of("fault") == []


def test_a_worker_that_dies_before_the_first_step_is_replaced(cluster: ClusterInfo, tmp_path: Path) -> None:
    (tmp_path / "armed").touch()
    data = {"name": "slow:deadly", "root": str(tmp_path)}
    watched = finished("slow-deadly", spec(data=data), tmp_path / "run")
    assert watched.events[-1].data["state"] == "SUCCEEDED", watched.events[-3:]
    (fault,) = watched.of("fault")
    assert fault["why"] == "died before it was ready"


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("algorithm", "processes"), [("sync", 0), ("sync", 2), ("downpour", 0)])
def test_data_that_hangs_costs_the_worker_and_names_the_example(
    cluster: ClusterInfo, tmp_path: Path, algorithm: str, processes: int
) -> None:
    (tmp_path / "hang").touch()
    begun_s = time.time()
    data = {"name": "slow:streamed", "root": str(tmp_path), "loader_processes": processes, "timeout_s": 5}
    watched = start(f"slow-read-{algorithm}-{processes}", spec(data=data, algorithm=algorithm), tmp_path / "run")
    watched.until(lambda event: event.type == "fault")
    (tmp_path / "hang").unlink()
    assert watched.end(200).data["state"] == "SUCCEEDED", watched.events[-3:]  # loaders import torch, each for itself
    assert watched.of("fault")[0]["why"] == "did not read example 5 of the dataset within 5 s"
    soon(lambda: not orphans(begun_s))


def test_data_that_hangs_while_it_is_opened_costs_the_worker_and_is_told_before_a_run(
    cluster: ClusterInfo, tmp_path: Path
) -> None:
    (tmp_path / "hang").write_text("0")
    data = {"name": "slow:streamed", "root": str(tmp_path), "loader_processes": 0, "timeout_s": 3}
    train = spec(data=data)
    why = "example 0 of the dataset was not read within 3 s"
    with pytest.raises(SpecRejected, match=why):
        preflight(train)
    watched = start("slow-opening", train, tmp_path / "run")
    watched.until(lambda event: event.type == "fault")
    (tmp_path / "hang").unlink()
    assert watched.end(200).data["state"] == "SUCCEEDED", watched.events[-3:]
    assert watched.of("fault")[0]["why"] == "did not read example 0 of the dataset within 3 s before it was ready"


def test_a_run_whose_data_hangs_can_be_cancelled(cluster: ClusterInfo, tmp_path: Path) -> None:
    (tmp_path / "hang").touch()
    data = {"name": "slow:streamed", "root": str(tmp_path), "loader_processes": 0}
    watched = start("slow-read-cancel", spec(data=data), tmp_path / "run")
    watched.until(lambda event: event.type == "state" and event.data["state"] == "RUNNING")
    watched.run.cancel()
    assert watched.end().data["state"] == "CANCELLED"
    gone_soon("slow-read-cancel", [])


def orphans(since_s: float) -> list[int]:
    """Loader processes, of whatever run, that were started since then and have lost their parents."""
    found = [process.info for process in psutil.process_iter(["pid", "cmdline", "ppid", "create_time"])]
    spawned = [one for one in found if "spawn_main" in " ".join(one["cmdline"] or ())]
    return [one["pid"] for one in spawned if one["ppid"] == 1 and one["create_time"] > since_s]
