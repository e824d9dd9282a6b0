"""The report on known measurements, and our rates from a known event log."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement import machine, report
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.memory import RunMemory
from benchmarks.measurement.millrace_runs import Sample, Window, analyse
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.results import BARE, DDP, DOWNPOUR, FIRST_STEP, LIMIT, LIMIT_OURS, RAY_ASYNC, SYNC, Results
from trainers.events import Event


def known() -> Results:
    results = Results({"processor": "one, 2 cores"}, {"model": "convnet"}, "0.10 0.10 0.10", "2.00 1.00 0.50")
    for slower in (1.0, 0.5, 1.0):
        rates = {LIMIT: 1800, LIMIT_OURS: 2000, DDP: 1000, RAY_ASYNC: 500, SYNC: 1600, BARE[SYNC]: 1700, DOWNPOUR: 1100}
        results.rounds.append({name: Measurement(rate * slower, 0.03) for name, rate in rates.items()})
    results.rounds[0][SYNC].details[FIRST_STEP] = 5.0
    results.memory[SYNC] = RunMemory(10, 2, {"private memory": 260, "segment parts-*": 40}, {"private memory": 200})
    results.failures["a peer"] = "it was not there"
    results.tried["DDP, default"] = [900.0, 950.0]
    return results


def test_markdown_says_it_all() -> None:
    text = report.markdown(known())
    assert "| Millrace sync | 1,600 | 800..1,600 | 1,200..1,600 | 30.0 | 1.60 (1.60..1.60) |" in text
    assert "| sync to DDP | at least 1.4 (1.5 in reach) | 1.6 | 1.6..1.6 | met, and what is in reach too |" in text
    assert "| downpour to DDP | at least 1.15 (1.25 in reach) | 1.1 | 1.1..1.1 | **missed** by 4.3% |" in text
    assert "| submit to first step, cold, s | at most 8 | 5 | 5..5 | met |" in text
    assert "memory of the service's process, MB | at most 250 | - | - | not measured |" in text
    assert "still missing to the limit with the same products | 20.0%" in text
    assert "| private memory | +3.00 |" in text
    assert "- a peer: it was not there" in text
    assert "| DDP, default | 900, 950 |" in text


def test_written_report_has_its_numbers_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(machine, "maker", lambda: "intel")
    path = report.write(known())
    assert path.parent == tmp_path / "results"
    assert path.name == f"{date.today().isoformat()}-throughput-intel.md"
    rounds = json.loads(path.with_suffix(".json").read_text())["rounds"]
    assert rounds[1][SYNC]["examples_per_s"] == 800


def step_event(seq: int, time: float, examples: int) -> Event:
    metrics: dict[str, Any] = {
        "step": examples // 32, "epoch": 0.1, "examples": examples, "examples_per_s": 1.0, "loss": 1.0,
        "learning_rate": 0.1, "wait_data_s": 0.1, "wait_communication_s": 0.3, "compute_s": 0.6, "workers": 2,
        "staleness": {0: 1, 1: 3},
    }  # fmt: skip
    return Event(seq=seq, time=time, type="step", data=metrics)


def test_rate_is_taken_between_warm_up_and_tail() -> None:
    steps = [(1, 10.0, 64), (2, 11.0, 640), (3, 12.0, 2560), (4, 13.0, 4480), (5, 20.0, 6400)]
    events = [step_event(*step) for step in steps]
    events.append(Event(seq=6, time=21.0, type="state", data={"state": "SUCCEEDED"}))
    samples = [Sample(seq, seq * 2.0) for seq in range(1, 6)]
    found = analyse(events, samples, submitted=7.5, window=Window(600, 6400, 32))
    assert found.examples_per_s == 1920  # reports 2 to 4: the first is warm-up, the last one the tail
    assert found.cpu_s_per_step == pytest.approx(4.0 / 120)
    assert found.details[FIRST_STEP] == 2.5
    assert found.details["share of time: communication"] == pytest.approx(0.3)
    assert found.details["mean staleness"] == 0.75


def test_a_failed_job_is_no_measurement() -> None:
    failed = [Event(seq=1, time=1.0, type="state", data={"state": "FAILED", "message": "no data"})]
    with pytest.raises(MeasurementError, match="no data"):
        analyse(failed, [], 0.0, Window(0, 1, 1))
