"""Intervals and verdicts on seeds drawn from a known truth."""

import math
import random

import pytest

from service.scaling.statistics import Seeds, mean, rising, std
from service.scaling.statistics import difference as apart
from service.scaling.statistics import judged as judged_seeds
from service.scaling.statistics import seeds_to_settle as settle

TOLERANCE = 0.005


def difference(values: list[float], others: list[float]) -> tuple[float, float] | None:
    return apart(Seeds.of(values), Seeds.of(others))


def judged(values: list[float], diverged: int, baseline: list[float], tolerance: float) -> str:
    return judged_seeds(Seeds.of(values), diverged, Seeds.of(baseline), tolerance)


def seeds_to_settle(values: list[float], baseline: list[float], tolerance: float) -> int | None:
    return settle(Seeds.of(values), Seeds.of(baseline), tolerance)


def drawn(centre: float, spread: float, count: int, dice: random.Random) -> list[float]:
    return [dice.gauss(centre, spread) for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_is_welchs(seed: int) -> None:
    from scipy.stats import ttest_ind

    dice = random.Random(seed)
    one = drawn(0.1, 10 ** dice.uniform(-6, -1), dice.randint(2, 6), dice)
    two = drawn(0.11, 10 ** dice.uniform(-6, -1), dice.randint(2, 6), dice)
    expected = ttest_ind(one, two, equal_var=False).confidence_interval(0.9)  # 5 % on each side
    assert difference(one, two) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_mean_and_spread() -> None:
    assert mean([0.1, 0.2, 0.3]) == pytest.approx(0.2)
    assert std([0.1, 0.2, 0.3]) == pytest.approx(0.1)
    assert std([0.1]) is None
    assert difference([0.1], [0.1, 0.2]) is None
    assert difference([0.1, 0.1], [0.3, 0.3]) == pytest.approx((-0.2, -0.2))


@pytest.mark.parametrize(("ratio", "most"), [(1, 0.075), (10, 0.13)])
@pytest.mark.parametrize("count", [3, 5])
def test_at_the_tolerance_a_verdict_is_wrong_as_rarely_as_is_said(ratio: float, most: float, count: int) -> None:
    """A true excess of exactly the tolerance: `within` or `beyond`, either would be an overstatement."""
    dice, verdicts = random.Random(count), []
    for _ in range(2000):
        baseline = drawn(0.1, 0.002, count, dice)
        values = drawn(0.1 + TOLERANCE, 0.002 * ratio, count, dice)
        verdicts.append(judged(values, 0, baseline, TOLERANCE))
    assert verdicts.count("within") / 2000 < 0.065
    assert verdicts.count("beyond") / 2000 < most
    assert verdicts.count("undecided") / 2000 > 0.8


def test_what_is_clear_is_found() -> None:
    dice, right = random.Random(7), 0
    for _ in range(500):
        baseline = drawn(0.1, 0.001, 5, dice)
        right += judged(drawn(0.1, 0.001, 5, dice), 0, baseline, TOLERANCE) == "within"
        right += judged(drawn(0.13, 0.004, 5, dice), 0, baseline, TOLERANCE) == "beyond"
    assert right > 990


def test_a_cell_that_spreads_so_widely_that_an_interval_tells_nothing() -> None:
    baseline, values = [0.10, 0.101, 0.102], [0.13, 0.4, 0.9]
    low, high = difference(values, baseline) or (0.0, 0.0)
    assert low < TOLERANCE < high
    assert judged(values, 0, baseline, TOLERANCE) == "beyond"
    assert judged(values[:2], 0, baseline, TOLERANCE) == "undecided"  # chance would do this in one of ten cases
    assert judged([0.104, 0.4, 0.9], 0, baseline, TOLERANCE) == "undecided"  # one seed is as good


def test_a_seed_that_diverged_breaks_a_cell() -> None:
    baseline = [0.1, 0.1001, 0.1002]
    assert judged(baseline, 0, baseline, TOLERANCE) == "within"
    assert judged(baseline, 1, baseline, TOLERANCE) == "beyond"
    assert judged([], 1, [], TOLERANCE) == "beyond"
    assert judged([], 0, baseline, TOLERANCE) == "untried"
    assert judged([0.9], 0, baseline, TOLERANCE) == "undecided"


def test_the_seeds_asked_for_settle_it_if_means_and_spreads_stay() -> None:
    """So many values with the same mean and standard deviation do decide, one fewer do not."""

    def seeds(centre: float, spread: float, count: int) -> list[float]:
        z = [(i - (count - 1) / 2) for i in range(count)]
        scale = spread / (std(z) or 1.0)
        return [centre + scale * a for a in z]

    few, base = seeds(0.103, 0.002, 3), seeds(0.1, 0.002, 3)
    assert judged(few, 0, base, TOLERANCE) == "undecided"
    count = seeds_to_settle(few, base, TOLERANCE)
    assert count is not None
    assert count > 3
    assert judged(seeds(0.103, 0.002, count), 0, seeds(0.1, 0.002, count), TOLERANCE) == "within"
    assert judged(seeds(0.103, 0.002, count - 1), 0, seeds(0.1, 0.002, count - 1), TOLERANCE) == "undecided"
    assert seeds_to_settle(seeds(0.1049, 0.002, 3), base, TOLERANCE) is None
    assert seeds_to_settle([0.1], base, TOLERANCE) == 3


def test_the_order_of_seeds_does_not_show_in_the_bits() -> None:
    dice = random.Random(3)
    values, others = drawn(0.1, 0.01, 7, dice), drawn(0.1, 0.01, 7, dice)
    expected = difference(values, others)
    for _ in range(20):
        dice.shuffle(values)
        dice.shuffle(others)
        assert difference(values, others) == expected
    assert expected is not None
    assert math.isfinite(expected[0])


def test_a_sequence_that_never_falls() -> None:
    assert rising([], []) == []
    assert rising([1.0, 2.0, 3.0], [1, 1, 1]) == [1.0, 2.0, 3.0]
    assert rising([3.0, 1.0], [1, 3]) == [1.5, 1.5]
    assert rising([1.0, 5.0, 3.0, 1.0, 9.0], [1, 1, 1, 1, 1]) == [1.0, 3.0, 3.0, 3.0, 9.0]


@pytest.mark.parametrize("seed", range(10))
def test_a_sequence_that_never_falls_is_the_nearest(seed: int) -> None:
    from sklearn.isotonic import IsotonicRegression

    dice = random.Random(seed)
    values, weights = [dice.gauss(i / 3, 1) for i in range(9)], [dice.randint(1, 5) for _ in range(9)]
    expected = IsotonicRegression().fit_transform(list(range(9)), values, sample_weight=weights)
    assert rising(values, weights) == pytest.approx(expected.tolist())
