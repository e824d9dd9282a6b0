"""Latencies in buckets: percentiles to within a bucket, whoever counted them, and the same over any sum."""

import json
import random

import pytest

from trainers.latency import LATENCY_FIGURES, PER_OCTAVE, Latency, bound_s, bucket_of, latency_figures, quantile_s

FACTOR = 2 ** (1 / PER_OCTAVE)


def counted(times: list[float]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for seconds in times:
        counts[bucket_of(seconds)] = counts.get(bucket_of(seconds), 0) + 1
    return counts


@pytest.mark.parametrize("seconds", [1.1e-6, 3.7e-5, 0.001, 0.0205, 1.0, 59.0, 4000.0])
def test_a_time_is_counted_between_the_bounds_of_its_bucket(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert bound_s(bucket) / FACTOR * 0.999999 <= seconds <= bound_s(bucket) * 1.000001


def test_what_takes_no_time_has_a_bucket_too() -> None:
    assert [bucket_of(seconds) for seconds in (-1.0, 0.0, 1e-9, 1e-6)] == [0, 0, 0, 0]


def test_percentiles_are_those_of_the_times_to_within_a_bucket() -> None:
    drawn = random.Random(17)
    times = sorted(drawn.lognormvariate(-6, 1.5) for _ in range(10_000))
    latency = Latency.of(counted(times))
    assert latency is not None
    for told, share in ((latency.p50_s, 0.5), (latency.p90_s, 0.9), (latency.p99_s, 0.99)):
        assert times[int(share * len(times))] / FACTOR < told < times[int(share * len(times))] * FACTOR
    assert latency.mean_s == pytest.approx(sum(times) / len(times), rel=0.03)
    assert latency.count == sum(count for _, count in latency.buckets) == 10_000
    assert [bound for bound, _ in latency.buckets] == sorted(bound for bound, _ in latency.buckets)


def test_of_one_call_every_percentile_is_in_its_bucket() -> None:
    for share in (0.01, 0.5, 1.0):
        assert 0.01 / FACTOR < quantile_s(counted([0.01]), share) < 0.01 * FACTOR
    assert Latency.of({}) is None


def test_a_step_event_tells_its_percentiles_also_once_it_was_json() -> None:
    step = {"fetch_latency": counted([0.001] * 99 + [1.0]), "push_latency": {}}
    figures = latency_figures(json.loads(json.dumps(step)))
    assert figures == latency_figures(step)
    assert list(figures) == list(LATENCY_FIGURES[:3])
    assert figures["fetch_p50_s"] == pytest.approx(0.001, rel=0.2)
    assert latency_figures({}) == {}
