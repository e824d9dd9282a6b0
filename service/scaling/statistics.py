"""How far apart two sets of seeds are, and what that shows. Sums are exact, so that the order of seeds does not matter.

Intervals are Welch's (1947): the spreads of two cells need not be alike, and near the batch where training breaks they
are not (paper 4, table 1: 0.12 against 0.37). Each side holds with 95 % confidence, so that an interval shows "within
the tolerance" or "beyond it" with an error of 5 % either way, as two one-sided tests do (Schuirmann 1987).
"""

import math
from collections.abc import Sequence
from typing import Literal

from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Of each side of an interval."""
MOST_SEEDS = 20
"""More would not be asked of anyone."""

Verdict = Literal["within", "beyond", "undecided", "untried"]
Seeds = Sequence[float]
"""One error a seed."""


def mean(values: Seeds) -> float:
    """Of at least one value."""
    return math.fsum(values) / len(values)


def variance(values: Seeds) -> float:
    """Of the population that at least two values were drawn from."""
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1)


def std(values: Seeds) -> float | None:
    """None where one value or none tells nothing of a spread."""
    return math.sqrt(variance(values)) if len(values) > 1 else None


def difference(values: Seeds, others: Seeds) -> tuple[float, float] | None:
    """The interval of mean(values) - mean(others); None where either has fewer than two seeds."""
    if min(len(values), len(others)) < 2:
        return None
    reach = _reach(variance(values), len(values), variance(others), len(others))
    centre = mean(values) - mean(others)
    return centre - reach, centre + reach


def _reach(s2: float, n: int, t2: float, m: int) -> float:
    """Half the width of Welch's interval, from two variances and the numbers of seeds."""
    a, b = s2 / n, t2 / m
    if a + b <= 0:
        return 0.0
    share = a / (a + b)  # Satterthwaite's degrees of freedom, in a form that small variances do not underflow
    freedom = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    return float(stdtrit(freedom, CONFIDENCE)) * math.sqrt(a + b)


def judged(values: Seeds, diverged: int, baseline: Seeds, tolerance: float) -> Verdict:
    """Whether a cell's mean error is within the tolerance of the baseline's.

    Beyond it is also a cell of which a seed diverged: no mean error within a tolerance is left then. And one of which
    every seed is worse than every seed of the baseline by more than the tolerance, where chance would do this in 5 % of
    cases at most (Mann and Whitney 1947; 3 seeds against 3 suffice): a cell about to break spreads so widely that
    Welch's interval tells nothing. With 3 seeds each, both tests together call a cell that is exactly at the
    tolerance beyond it in 6 % of cases, in 10 % where it spreads ten times as widely as the baseline.
    """
    if diverged:
        return "beyond"
    if not values:
        return "untried"
    interval = difference(values, baseline)
    if interval is None:
        return "undecided"
    ranked = math.comb(len(values) + len(baseline), len(values)) * (1 - CONFIDENCE) >= 1 - 1e-9
    if interval[0] > tolerance or (ranked and min(values) > max(baseline) + tolerance):
        return "beyond"
    return "within" if interval[1] < tolerance else "undecided"


def seeds_to_settle(values: Seeds, baseline: Seeds, tolerance: float) -> int | None:
    """How many seeds of each would decide, if means and spreads stayed as they are; None: more than 20."""
    if len(values) < 2 or len(baseline) < 2:
        return max(3, len(values), len(baseline))
    distance = abs(mean(values) - mean(baseline) - tolerance)
    s2, t2 = variance(values), variance(baseline)
    for n in range(max(3, len(values)), MOST_SEEDS + 1):
        if _reach(s2, n, t2, max(n, len(baseline))) < distance:
            return n
    return None


def rising(values: Seeds, weights: Sequence[int]) -> list[float]:
    """The sequence nearest to `values` by weighted squares that never falls (Ayer et al. 1955: neighbours that fall are
    pooled)."""
    pools: list[tuple[float, int, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            pool = ((before[0] * before[1] + pool[0] * pool[1]) / total, total, before[2] + pool[2])
        pools.append(pool)
    return [value for value, _, length in pools for _ in range(length)]
