"""Figures over time: read from the log, downsampled without losing a spike."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import SeriesNotFound
from service.jobs.metric_series import KEPT, LOG, LONG_BYTES, NAMES, SeriesCache, downsample
from tests.service.fakes import FakeRun
from trainers.events import State
from trainers.spec import TrainSpec


def a_run(tmp_path: Path) -> FakeRun:
    return FakeRun("abc", TrainSpec(), tmp_path)


def test_a_long_run_is_downsampled_and_its_spikes_stay(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for index in range(3000):
        run.step(index / 1000, loss=9.0 if index == 1234 else 0.5, workers=1 + index % 2)
    run.evaluation(3, 0.9)
    run.succeed()
    line = SeriesCache().line(tmp_path, "loss", "epoch", 100)
    assert line.total == 3000
    assert len(line.points) <= 100
    assert (1.234, 9.0) in line.points
    assert line.points[0] == (0.0, 0.5)
    assert line.points[-1][0] == pytest.approx(2.999)
    assert [x for x, _ in line.points] == sorted(x for x, _ in line.points)
    workers = {y for _, y in SeriesCache().line(tmp_path, "workers", "examples", 10).points}
    assert workers == {1.0, 2.0}
    assert SeriesCache().line(tmp_path, "test_accuracy", "examples", 10).points == [(3000.0, 0.9)]
    assert SeriesCache().line(tmp_path, "test_error_median", "time", 10).points == []


def test_it_grows_with_the_run_and_is_kept_when_the_run_has_ended(tmp_path: Path) -> None:
    cache, run = SeriesCache(), a_run(tmp_path)
    assert cache.line(tmp_path / "no run", "loss", "examples", 100).points == []
    for epoch in (1.0, 2.0):
        run.step(epoch)
        assert cache.line(tmp_path, "loss", "epoch", 100).total == epoch
    assert not (tmp_path / KEPT).exists()
    run.state(State.FAILED)
    whole = cache.line(tmp_path, "loss", "time", 100)
    assert (tmp_path / KEPT).exists()
    assert SeriesCache().line(tmp_path, "loss", "time", 100) == whole
    (tmp_path / KEPT).write_bytes(b"half a file")
    assert SeriesCache().line(tmp_path, "loss", "time", 100) == whole


def test_of_a_long_run_that_ends_the_columns_are_kept(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.step(0.5)
    SeriesCache().keep(tmp_path)
    assert not (tmp_path / KEPT).exists()
    while (tmp_path / LOG).stat().st_size < LONG_BYTES:
        run.step(1.0, loss=0.25)
    SeriesCache().keep(tmp_path)
    assert not (tmp_path / KEPT).exists()  # it goes on
    run.succeed()
    SeriesCache().keep(tmp_path)
    assert (tmp_path / KEPT).exists()
    (tmp_path / LOG).write_bytes(b"x" * (tmp_path / LOG).stat().st_size)  # nobody reads it again
    assert SeriesCache().line(tmp_path, "loss", "epoch", 10).points[-1] == (1.0, 0.25)
    SeriesCache().keep(tmp_path / "no run")


def test_many_lines_are_held_downsampled_and_none_is_stale(tmp_path: Path) -> None:
    cache, run = SeriesCache(), a_run(tmp_path)
    run.step(1.0)
    assert cache.line(tmp_path, "loss", "epoch", 10).total == 1
    assert cache.line(tmp_path, "loss", "epoch", 10) == cache.line(tmp_path, "loss", "epoch", 10)
    run.step(2.0)
    assert cache.line(tmp_path, "loss", "epoch", 10).points == [(1.0, 0.5), (2.0, 0.5)]
    assert cache.line(tmp_path, "workers", "time", 10).points[0][1] == 2.0
    cache.forget(tmp_path)
    assert not cache.downsampled
    run.die()


def test_staleness_is_that_of_the_new_updates(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    data = run.step(0.5).data
    for counts in ({"0": 4}, {"0": 4, "2": 2}, {"0": 5, "2": 2, "7": 1}, {"0": 3}):
        run.emit("step", **data | {"staleness": counts})
    run.die()
    cache = SeriesCache()
    means = [y for _, y in cache.line(tmp_path, "staleness", "epoch", 100).points]
    assert means == [0.0, 0.0, 2.0, 3.5, 0.0]  # the last began anew
    assert [y for _, y in cache.line(tmp_path, "stalest", "epoch", 100).points] == [0.0, 0.0, 2.0, 7.0, 0.0]


def test_percentiles_of_latencies_are_those_since_the_last_report(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for counts in ({"fetch_latency": {"39": 100}}, {"push_latency": {"43": 1}}, {"fetch_latency": {"79": 4}}):
        run.step(0.5, **counts)
    run.die()
    cache = SeriesCache()
    medians = [y for _, y in cache.line(tmp_path, "fetch_p50_s", "epoch", 100).points]
    assert medians == pytest.approx([0.000939, 0.962], rel=0.01)  # of the second report there is none
    assert len(cache.line(tmp_path, "push_p99_s", "epoch", 100).points) == 1


def test_an_unknown_name_is_answered_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SeriesNotFound, match=f"there are {NAMES[0]}"):
        SeriesCache().line(tmp_path, "lost", "examples", 100)


def test_metrics_of_a_task_of_one_s_own(tmp_path: Path) -> None:
    """They are whatever is measured, also where the first evaluations did not; and so they are kept."""
    run = a_run(tmp_path)
    assert SeriesCache().line(tmp_path, "test_recall", "epoch", 10).points == []
    run.emit("evaluation", epoch=1, examples=1000, test_loss=0.5, seconds=0.1)
    run.emit("evaluation", epoch=2, examples=2000, test_loss=0.4, test_recall=0.75, seconds=0.1)
    run.succeed()
    for _ in ("read", "kept"):
        cache = SeriesCache()
        assert cache.line(tmp_path, "test_recall", "epoch", 10).points == [(2.0, 0.75)]
        assert cache.line(tmp_path, "test_loss", "examples", 10).points == [(1000.0, 0.5), (2000.0, 0.4)]
        cache.check(tmp_path, "test_recall")
        cache.check(tmp_path, "test_accuracy")
        with pytest.raises(SeriesNotFound, match=r"no figure is called 'test_recal'.*test_loss, test_recall"):
            cache.check(tmp_path, "test_recal")
    assert (tmp_path / KEPT).exists()


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes_and_is_short_enough(values: list[float], points: int) -> None:
    y = np.array(values)
    at = downsample(y, points).tolist()
    assert at == sorted(set(at))
    assert len(at) <= max(points, min(len(y), 4))
    if values:
        assert {0, len(y) - 1} <= set(at)
        assert y[at].min() == y.min()
        assert y[at].max() == y.max()
