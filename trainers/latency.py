"""How long calls took: counted in buckets whose bounds grow by a fixed factor, so that counting costs a fraction of a
microsecond, what many workers counted adds up, and a second and a millisecond are told equally well.

Bucket i counts what took less than 2^((i+1)/4) microseconds, and no less than the bucket before: a factor of 1.19.
"""

from collections.abc import Mapping
from math import exp2, log2
from typing import Any, Self

from pydantic import ConfigDict

from trainers.documented import Documented

PER_OCTAVE = 4
"""Buckets between one time and its double."""
UNIT_S = 1e-6
SHARES = {"p50_s": 0.5, "p90_s": 0.9, "p99_s": 0.99}
"""The percentiles that are told, by name."""

CALLS = ("fetch", "push")
LATENCY_FIGURES = tuple(f"{call}_{name}" for call in CALLS for name in SHARES)
"""The percentiles of the calls of a step event, by name: `fetch_p50_s` ..."""

LatencyCounts = dict[int, int]
"""Bucket -> how many calls; without those of which there were none."""


def bucket_of(seconds: float) -> int:
    """Where a time is counted; what took less than a microsecond is in bucket 0."""
    return int(PER_OCTAVE * log2(seconds / UNIT_S)) if seconds > UNIT_S else 0


def bound_s(bucket: int) -> float:
    """The upper bound of a bucket, seconds."""
    return UNIT_S * exp2((bucket + 1) / PER_OCTAVE)


def quantile_s(counts: LatencyCounts, share: float) -> float:
    """Within how many seconds this share (0 to 1) of the calls was over; at least one was counted. Within a bucket they
    count as spread evenly over the logarithm of the time."""
    wanted, before = share * sum(counts.values()), 0
    for bucket, count in sorted(counts.items()):
        if before + count >= wanted:
            return bound_s(bucket) * exp2(((wanted - before) / count - 1) / PER_OCTAVE)
        before += count
    return bound_s(max(counts))


def latency_figures(step: Mapping[str, Any]) -> dict[str, float]:
    """Those of LATENCY_FIGURES that the data of a `step` event tell, seconds; their keys may be texts, as in JSON."""
    found: dict[str, float] = {}
    for call in CALLS:
        counts = {int(bucket): count for bucket, count in (step.get(f"{call}_latency") or {}).items()}
        if counts:
            found |= {f"{call}_{name}": quantile_s(counts, share) for name, share in SHARES.items()}
    return found


def sum_s(counts: LatencyCounts) -> float:
    """About how many seconds all calls took: each as if it were in the middle of its bucket."""
    return sum(count * bound_s(bucket) * exp2(-0.5 / PER_OCTAVE) for bucket, count in counts.items())


class Latency(Documented):
    """How long calls of one kind took, each to within a tenth."""

    model_config = ConfigDict(frozen=True)

    count: int
    """Of all calls."""
    mean_s: float
    p50_s: float
    """Half of the calls took no longer, seconds."""
    p90_s: float
    p99_s: float
    buckets: list[tuple[float, int]]
    """The histogram: pairs of an upper bound, seconds, and how many calls took less and no less than the bound a factor
    of 1.19 below it; in the order of the bounds, empty buckets left out."""

    @classmethod
    def of(cls, counts: LatencyCounts) -> Self | None:
        """What counts say; None where there are none."""
        total = sum(counts.values())
        if not total:
            return None
        shares = {name: _rounded(quantile_s(counts, share)) for name, share in SHARES.items()}
        buckets = [(_rounded(bound_s(bucket)), count) for bucket, count in sorted(counts.items())]
        return cls(count=total, mean_s=_rounded(sum_s(counts) / total), buckets=buckets, **shares)


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
