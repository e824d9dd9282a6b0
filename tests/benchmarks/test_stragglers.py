"""The benchmarks of the parameter server on known figures; and a process that was slowed goes on as before."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import shard_traffic, stragglers
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.slowdown import slowed
from benchmarks.measurement.workload import DIGITS, Workload
from benchmarks.shard_traffic import Bytes
from benchmarks.steps import optimizers
from benchmarks.stragglers import Report, Steps
from trainers.events import Metrics
from trainers.spec import DataSpec

WORK = Workload(DataSpec(name=DIGITS), workers=4)


def report(time: float, step: int, dropped: int = 0) -> Report:
    metrics: dict[str, Any] = {
        "step": step, "epoch": 0.1, "examples": 96 * step, "examples_per_s": 1.0, "loss": 1.0, "learning_rate": 0.1,
        "wait_data_s": 0.1, "wait_communication_s": 0.3, "compute_s": 0.6, "workers": 4, "staleness": {0: 3 * step},
        "dropped": dropped,
    }  # fmt: skip
    return time, Metrics.model_validate(metrics)


def test_the_median_is_over_steps_and_a_report_without_one_counts_for_the_next() -> None:
    reports = [report(10.0, 100, 5), report(11.0, 101, 6), report(11.5, 101, 6), report(13.0, 102, 7)]
    reports.append(report(13.3, 105, 9))
    found = stragglers.analyse(reports)
    assert found.median_s == pytest.approx(0.1)
    assert found.dropped == pytest.approx(4 / 19)
    with pytest.raises(MeasurementError, match="no step"):
        stragglers.analyse(reports[1:3])


def test_the_report_of_stragglers_says_it_all() -> None:
    slow = {"sync, one backup worker": 0.024, "sync, through shards": 0.2, "sync": 0.15}
    rounds = [{name: (Steps(0.02, 0.0), Steps(s * k, 0.1)) for name, s in slow.items()} for k in (1.0, 1.5, 1.1)]
    text = stragglers.markdown(WORK, rounds, ("0.10", "0.20"))
    assert "| sync, one backup worker | 20.0 | 26.4 | 1.32 (1.20..1.80) | 0% | 10% |" in text
    assert "at most 1.5: 1.32, met." in text


def test_the_report_of_bytes_relates_them_to_downpour() -> None:
    found = {"downpour": Bytes(4_000_000, 8_000_000, 0), "mixed, groups of 2": Bytes(2_000_000, 4_000_000, 500_000)}
    assert "| mixed, groups of 2 | 2.0 | 4.0 | 0.5 | 0.500 | 0.500 |" in shard_traffic.markdown(WORK, found)


def test_the_report_of_optimizers_relates_them_to_momentum_round_by_round() -> None:
    text = optimizers.markdown({"momentum": [0.004, 0.002, 0.003], "adamw": [0.006, 0.0022, 0.0045]}, {})
    assert "| adamw | 4.50 | 3.35..5.25 | 1.50 | 1.30..1.50 |" in text
    assert "| adamw: an update to one of momentum | at most 1.3 | 1.5 | 1.1..1.5 | **missed** by 15.4% |" in text


def test_a_slowed_process_goes_on_as_before() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with slowed(process.pid, 10.0):
            pass
        assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T"
        process.communicate(b"\n")
    with slowed(process.pid, 10.0):  # gone: nothing to slow
        pass
