"""Sleeping workers under real shards: a small run counts every step once, and the report judges known figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measurement.processes import MeasurementError
from benchmarks.scale import __main__ as command
from benchmarks.scale.report import Report, growth, markdown
from benchmarks.scale.rig import Figures, cycle_s, slope
from benchmarks.scale.sleepers import CODE, Sleepers
from tests.runtime.runs import finished
from trainers.spec import TrainSpec

SLEEPERS = Sleepers(think_s=3.2, serve_s=0.05)
FIGURES = Figures(
    workers=8, steps_per_s=2.45, bound=2.5, start_s=9.0, coordinator_s=0.02, shard_s=0.01, workers_s=0.03,
    events_per_s=3.0, coordinator_bytes=8e7, worker_bytes=3e7, death_s=0.1, back_s=2.0, leave_s=0.3,
)  # fmt: skip


@pytest.mark.parametrize(("workers", "bound"), [(1, 0.3125), (64, 20.0), (256, 20.0)])
def test_the_bound_is_the_smaller_of_both(workers: int, bound: float) -> None:
    assert SLEEPERS.corner == 64
    assert SLEEPERS.bound(workers) == bound


def test_a_worker_waits_for_all_others_beyond_the_corner() -> None:
    assert cycle_s(8, SLEEPERS) == pytest.approx(3.25)
    assert cycle_s(256, SLEEPERS) == pytest.approx(12.8)


def test_the_rate_of_bursts_is_that_of_the_line_through_them() -> None:
    """Eight workers that push at once, every two seconds, seen at any of ten phases of the window."""
    for phase in range(10):
        times = [0.2 * (phase + i) for i in range(200)]
        assert slope(times, [8 * (t // 2) for t in times]) == pytest.approx(4.0, rel=0.02)


def test_the_report_says_what_is_missed_and_what_grows() -> None:
    many = replace(FIGURES, workers=256, steps_per_s=16.0, bound=20.0, coordinator_s=1.0, shard_s=0.066)
    text = markdown(Report(SLEEPERS, [FIGURES, many], 40.0, ("0.10 0.10 0.10", "0.20 0.20 0.20")))
    assert "| 8 | 2.45 | 2.50 | 0.980 | met |" in text
    assert "**missed** by 15.8%" in text
    assert "coordinator 7.66 times on 256 workers what it costs on 8: **more than linear**" in text
    assert "shard 1.01 times on 256 workers what it costs on 8: no more than linear" in text
    assert "nothing about growth" in growth([FIGURES])


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_a_small_run_makes_every_step_once(tmp_path: Path) -> None:
    spec = Sleepers(think_s=0.002, serve_s=0.001, numel=64, shards=2).spec(3, epochs=2)
    spec = TrainSpec.model_validate(spec.model_dump() | {"data": {"name": f"{CODE}:numbers", "limit": 30}})
    events = finished("scale-small", spec, tmp_path / "run").events
    (result,) = [event.data for event in events if event.type == "result"]
    assert (result["state"], result["examples"]) == ("SUCCEEDED", 60)
    audits = [event.data for event in events if event.type == "epoch_audit"]
    assert [(a["trained"], a["lost"], a["duplicated"]) for a in audits] == [(30, 0, 0)] * 2
    steps = [event.data for event in events if event.type == "step"]
    assert sum(steps[-1]["staleness"].values()) == 60


def test_what_was_measured_is_reported_although_more_workers_could_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(workers: int, *_: object, **__: object) -> Figures:
        if workers > 8:
            raise MeasurementError("the run ended")
        return FIGURES

    monkeypatch.setattr(command, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(command, "measure", measure)
    monkeypatch.setattr(command, "report_path", lambda name: tmp_path / f"{name}.md")
    assert command.main(["--report"]) == 1
    assert "| 8 | 2.45 | 2.50 | 0.980 | met |" in (tmp_path / "scale.md").read_text()
    assert [each["workers"] for each in json.loads((tmp_path / "scale.json").read_text())] == [8]
