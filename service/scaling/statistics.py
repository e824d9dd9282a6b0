"""How far apart two sets of seeds are, and what that shows. Sums are exact, so that the order of seeds does not matter.

Intervals are Welch's (1947): the spreads of two cells need not be alike, and near the batch where training breaks they
are not (paper 4, table 1: 0.12 against 0.37). Each side holds with 95 % confidence, so that an interval shows "within
the tolerance" or "beyond it" with an error of 5 % either way, as two one-sided tests do (Schuirmann 1987).
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from scipy.special import stdtrit

CONFIDENCE = 0.95
"""Of each side of an interval."""
MOST_SEEDS = 20
"""More would not be asked of anyone."""
FEWEST = 1.5
"""Seeds that count so little beside one of them have no spread to tell of: the interval would be boundless."""

Verdict = Literal["within", "beyond", "undecided", "untried"]


class Seeds(NamedTuple):
    """One error a seed, and how much each counts as evidence: 1 of a seed that was trained to its end."""

    errors: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, errors: Sequence[float]) -> "Seeds":
        """Seeds that count alike."""
        return cls(tuple(errors), (1.0,) * len(errors))

    @property
    def mean(self) -> float:
        """Of at least one seed."""
        return math.fsum(w * e for e, w in zip(*self, strict=True)) / math.fsum(self.weights)

    @property
    def variance(self) -> float:
        """Of the population that at least two seeds were drawn from, without bias where they count differently."""
        centre, total = self.mean, math.fsum(self.weights)
        squares = math.fsum(w * (e - centre) ** 2 for e, w in zip(*self, strict=True))
        return squares / (total - math.fsum(w * w for w in self.weights) / total)

    @property
    def std(self) -> float | None:
        """None where one seed or none tells nothing of a spread."""
        return math.sqrt(self.variance) if len(self.errors) > 1 else None

    @property
    def effective(self) -> float:
        """As many seeds that count alike have a mean so sure (Kish 1965)."""
        return math.fsum(self.weights) ** 2 / math.fsum(w * w for w in self.weights) if self.weights else 0.0


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return math.fsum(values) / len(values)


def std(values: Sequence[float]) -> float | None:
    """None where one value or none tells nothing of a spread."""
    return Seeds.of(values).std


def difference(values: Seeds, others: Seeds) -> tuple[float, float] | None:
    """The interval of the means' difference; None where either has fewer than two seeds, as far as they count."""
    if min(values.effective, others.effective) < FEWEST:
        return None
    reach = _reach(values.variance, values.effective, others.variance, others.effective)
    centre = values.mean - others.mean
    return centre - reach, centre + reach


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of a mean, Student's; None of fewer than two values."""
    if len(values) < 2:
        return None
    seeds = Seeds.of(values)
    reach = float(stdtrit(len(values) - 1, CONFIDENCE)) * math.sqrt(seeds.variance / len(values))
    return seeds.mean - reach, seeds.mean + reach


def _reach(s2: float, n: float, t2: float, m: float) -> float:
    """Half the width of Welch's interval, from two variances and the numbers of seeds."""
    a, b = s2 / n, t2 / m
    if a + b <= 0:
        return 0.0
    share = a / (a + b)  # Satterthwaite's degrees of freedom, in a form that small variances do not underflow
    freedom = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    return float(stdtrit(freedom, CONFIDENCE)) * math.sqrt(a + b)


def judged(values: Seeds, diverged: int, baseline: Seeds, tolerance: float) -> Verdict:
    """Whether a cell's mean error is within the tolerance of the baseline's.

    Beyond it is also a cell of which a seed diverged: it has no mean error then. And one of which
    every seed is worse than every seed of the baseline by more than the tolerance, where chance would do this in 5 % of
    cases at most (Mann and Whitney 1947; 3 seeds against 3 suffice): a cell about to break spreads so widely that
    Welch's interval tells nothing. With 3 seeds each, both tests together call a cell that is exactly at the
    tolerance beyond it in 6 % of cases, in 10 % where it spreads ten times as widely as the baseline.
    """
    if diverged:
        return "beyond"
    if not values.errors:
        return "untried"
    interval = difference(values, baseline)
    if interval is None:
        return "undecided"
    mine, theirs = len(values.errors), len(baseline.errors)
    ranked = math.comb(mine + theirs, mine) * (1 - CONFIDENCE) >= 1 - 1e-9
    if interval[0] > tolerance or (ranked and min(values.errors) > max(baseline.errors) + tolerance):
        return "beyond"
    return "within" if interval[1] < tolerance else "undecided"


def seeds_to_settle(values: Seeds, baseline: Seeds, tolerance: float) -> int | None:
    """How many seeds of each would decide, if means and spreads stayed as they are; None: more than 20."""
    mine, theirs = len(values.errors), len(baseline.errors)
    if min(values.effective, baseline.effective) < FEWEST:
        return max(3, mine, theirs)
    distance = abs(values.mean - baseline.mean - tolerance)
    s2, t2 = values.variance, baseline.variance
    for n in range(max(3, mine), MOST_SEEDS + 1):
        if _reach(s2, n, t2, max(n, theirs)) < distance:
            return n
    return None


def rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The sequence nearest to `values` by weighted squares that never falls (Ayer et al. 1955: neighbours that fall are
    pooled)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before = pools.pop()
            total = before[1] + pool[1]
            pool = ((before[0] * before[1] + pool[0] * pool[1]) / total, total, before[2] + pool[2])
        pools.append(pool)
    return [value for value, _, length in pools for _ in range(length)]
