"""The benchmark of slow links on known figures."""

import json
from typing import Any

import pytest

from benchmarks.links import contenders, report
from benchmarks.links.contenders import DDP, FAST, LIMIT, OURS, Place
from benchmarks.links.endless import Rate
from benchmarks.links.overlap import Overlap, overlap_of
from benchmarks.measurement.workload import DIGITS, Workload
from trainers.spec import DataSpec

WORK = Workload(DataSpec(name=DIGITS), minibatch=100)
PLACE = Place(nodes=2, mbit_per_s=8.0)  # 1 MB/s
NUM_PARAMETERS = 250_000  # 1 MB; so each of two workers sends 1 MB at least, in 1 s


@pytest.mark.parametrize(("limit", "expected"), [(1000.0, 200.0), (100.0, 100.0)])
def test_a_step_takes_its_computing_or_its_bytes(limit: float, expected: float) -> None:
    assert contenders.bound_of(PLACE, WORK, limit, NUM_PARAMETERS) == pytest.approx(expected)


def test_two_workers_of_a_node_train_twice_as_much_for_the_same_bytes() -> None:
    place = Place(2, 8.0, per_node=2)
    assert contenders.bound_of(place, WORK, 1000.0, NUM_PARAMETERS) == pytest.approx(400.0)
    assert place.title == "2 nodes of 2 workers, links of 8 Mbit/s"


def test_four_workers_send_one_and_a_half_vectors_each() -> None:
    assert contenders.all_reduce_bytes(Place(4, 8.0), NUM_PARAMETERS) == 1.5e6


@pytest.mark.parametrize("name", OURS)
def test_every_contender_is_a_spec(name: str) -> None:
    assert contenders.spec_of(WORK, OURS[name]).algorithm.name in name


def span(name: str, begin_ms: float, end_ms: float, thread: int = 1) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": 1000 * begin_ms, "dur": 1000 * (end_ms - begin_ms), "tid": thread}


def test_what_a_trace_shows_of_the_overlap() -> None:
    """Of two steps: buckets of the first travel on two lanes from 40 to 90, and on into the second, which waits for
    them for 10 ms."""
    first = [
        span("step", 0, 95), span("forward", 0, 30), span("backward", 30, 90), span("aten::mm", 40, 45),
        span("sums", 40, 80, thread=2), span("sums", 60, 110, thread=3),
    ]  # fmt: skip
    second = [
        span("step", 100, 200), span("forward", 100, 130), span("sums", 105, 115), span("backward", 130, 200),
        span("sums", 150, 190, thread=2), span("update", 155, 160, thread=2),
    ]  # fmt: skip
    assert overlap_of(first + second) == Overlap(*(pytest.approx(s) for s in (0.1, 0.055, 0.005)))
    assert overlap_of(second) == Overlap(*(pytest.approx(s) for s in (0.1, 0.04, 0.01)))
    assert overlap_of(second).hidden == pytest.approx(0.75)


def test_the_report_says_what_was_missed() -> None:
    rounds = [{LIMIT: Rate(1000.0, 0.0), DDP: Rate(150.0 * k, 0.0, 1e4), FAST: Rate(170.0, 0.7, 1e4)} for k in (1, 2)]
    found = report.Found(PLACE, NUM_PARAMETERS, rounds, Overlap(0.1, 0.05, 0.01))
    text = report.markdown(WORK, [found], ("0.10", "0.20"))
    assert "| Millrace sync, fast | 170 | 170..170 | 0.85 (0.57..1.13) | 1.0 | 70% |" in text
    assert "| fast to DDP, 2 nodes, links of 8 Mbit/s | at least 1 | 0.85 | 0.567..1.13 | **missed** by 15.0% |" in text
    assert "| at least 0.9 | 0.85 | 0.85..0.85 | **missed** by 5.6% |" in text
    assert "| 100 | 50 | 10 | 80% |" in text
    assert report.restored(json.loads(json.dumps(report.raw([found])))) == [found]
