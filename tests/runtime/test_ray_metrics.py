"""What a run records in Ray's metrics, without Ray; `tests/deploy/test_prometheus.py` has a real run and Prometheus."""

from collections import defaultdict
from typing import Any

import pytest

from tests.runtime.runs import spec
from trainers.events import Metrics
from trainers.runtime import ray_metrics
from trainers.runtime.ray_metrics import RayMetrics

Recorded = dict[tuple[str, frozenset[tuple[str, str]]], list[float]]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Everything that is recorded, by name and tags."""
    records: Recorded = defaultdict(list)

    class Recorder:
        def __init__(self, name: str, _described: str, *others: Any) -> None:
            self.name = name
            self.keys = set(others[-1])

        def _record(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == self.keys, "Ray refuses what has not all tags"
            records[self.name, frozenset(tags.items())].append(value)

        inc = set = observe = _record

    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(ray_metrics, kind, Recorder)
    return records


def step(examples: int, steps: int, staleness: dict[int, int], **figures: float) -> dict[str, Any]:
    base: dict[str, Any] = {"epoch": 1.0, "examples_per_s": 10.0, "loss": 0.5, "learning_rate": 0.1, "workers": 2}
    base |= {"wait_data_s": 0.5, "wait_communication_s": 0.25, "compute_s": 1.0}
    metrics = Metrics(step=steps, examples=examples, staleness=staleness, **(base | figures))
    return metrics.model_dump(mode="json")


def of(recorded: Recorded, name: str, **tags: str) -> list[float]:
    return recorded[name, frozenset(({"algorithm": "downpour"} | tags).items())]


def test_workers_are_told_again_also_where_they_stay_as_they_are(recorded: Recorded) -> None:
    run = RayMetrics(spec(algorithm="downpour"))
    run.add("actors", {"workers": [{"name": "a", "node_ip": "10.0.0.1"}, {"name": "b", "node_ip": "10.0.0.1"}]})
    run.keep()
    assert of(recorded, "millrace_workers", node="10.0.0.1") == [2, 2]


def test_reports_add_up_to_the_run(recorded: Recorded) -> None:
    run = RayMetrics(spec(algorithm="downpour"))
    run.add("step", step(0, 0, {}))
    run.add("step", step(100, 5, {0: 2, 1: 3}, pushes=5, wait_push_s=0.125, fetches=6, wait_fetch_s=0.25))
    run.add("step", step(250, 9, {0: 4, 1: 3, 7: 2}, pushes=4))
    assert of(recorded, "millrace_examples") == [100, 150]
    assert of(recorded, "millrace_updates") == [5, 4]
    assert sorted(of(recorded, "millrace_staleness_updates")) == [0, 0, 0, 0, 1, 1, 1, 7, 7]
    assert (of(recorded, "millrace_pushes"), of(recorded, "millrace_push_wait_seconds")) == ([5, 4], [0.125])
    assert (of(recorded, "millrace_fetches"), of(recorded, "millrace_fetch_wait_seconds")) == ([6], [0.25])
    parts = {part: of(recorded, "millrace_worker_seconds", part=part) for part in ray_metrics.PARTS}
    assert parts == {"data": [0.5] * 3, "communication": [0.25] * 3, "computation": [1.0] * 3}


def test_what_was_trained_before_this_coordinator_does_not_count_again(recorded: Recorded) -> None:
    run = RayMetrics(spec(algorithm="downpour"))
    run.add("step", step(10_000, 1, {}))
    run.add("step", step(10_200, 9, {}))
    assert of(recorded, "millrace_examples") == [200]


def test_every_counter_begins_at_zero(recorded: Recorded) -> None:
    RayMetrics(spec(algorithm="downpour")).begin()
    assert {name for name, _ in recorded} == {*ray_metrics.COUNTERS, "millrace_worker_seconds"}
    assert all(values == [0.0] for values in recorded.values())


def test_workers_are_counted_by_node_as_they_come_and_go(recorded: Recorded) -> None:
    run = RayMetrics(spec(algorithm="downpour"))
    workers = [{"name": "j/worker/0", "node_ip": "a"}, {"name": "j/worker/1", "node_ip": "a"}]
    run.add("actors", {"workers": [*workers, {"name": "j/worker/2", "node_ip": "b"}], "shards": []})
    run.add("fault", {"actor": "j/worker/0", "why": "was killed"})
    run.add("fault", {"actor": "j/shard/0", "why": "was killed"})
    run.add("resize", {"workers": 3, "joined": ["j/worker/3"], "left": [], "nodes": {"j/worker/3": "b"}})
    run.add("resize", {"workers": 2, "joined": [], "left": ["j/worker/1"], "nodes": {}})
    run.add("state", {"state": "RUNNING"})
    run.add("state", {"state": "SUCCEEDED"})
    assert of(recorded, "millrace_workers", node="a") == [2, 1, 1, 1, 0, 0]
    assert of(recorded, "millrace_workers", node="b") == [1, 1, 1, 2, 2, 0]
    assert of(recorded, "millrace_resizes") == of(recorded, "millrace_faults") == [1, 1]
