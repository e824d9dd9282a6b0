"""When a curve has separated from the baseline's."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.scaling.divergence import Divergence, diverges_from_baseline
from service.scaling.evidence import Point

EPOCHS = 90
Loss = Callable[[float], float]


def baseline_loss(epoch: float) -> float:
    """As in paper 4's figure 2: down to 2.0 in 30 epochs, then lower at each drop of the rate."""
    drops = sum(epoch > edge for edge in (30, 60, 80))
    return (2.0 - 0.4 * drops) + 5.0 * math.exp(-epoch / 5)


def curve(loss: Loss, until: float = EPOCHS, seed: int = 0, noise: float = 0.02, an_epoch: int = 4) -> list[Point]:
    dice = random.Random(seed)
    found = []
    for i in range(1, round(until * an_epoch) + 1):
        epoch = i / an_epoch
        value = loss(epoch) + dice.gauss(0, noise)
        found.append(Point(examples=round(epoch * 1000), epoch=epoch, seconds=epoch, train_loss=value))
    return found


BASELINE = [curve(baseline_loss, seed=seed) for seed in range(5)]


def warming_up(epoch: float) -> float:
    """Paper 4's figure 2c: starts higher, and matches after about 20 epochs."""
    return baseline_loss(epoch) + 3.0 * math.exp(-epoch / 6)


def inferior(epoch: float) -> float:
    """Figure 2a: behind across all epochs."""
    return baseline_loss(epoch) + 0.5


@pytest.mark.parametrize("seed", range(10))
def test_matching_curves_are_left_alone_and_inferior_ones_found_well_before_the_end(seed: int) -> None:
    assert not diverges_from_baseline(curve(baseline_loss, seed=100 + seed), BASELINE, EPOCHS).separated
    assert not diverges_from_baseline(curve(warming_up, seed=100 + seed), BASELINE, EPOCHS).separated
    found = diverges_from_baseline(curve(inferior, seed=100 + seed), BASELINE, EPOCHS)
    assert found.separated
    assert found.epoch is not None
    assert 0.35 * EPOCHS <= found.epoch < 0.5 * EPOCHS
    assert found.gap == pytest.approx(0.5, abs=0.1)
    assert "above the baseline's at epoch" in found.why


def test_nothing_is_decided_in_the_grace_at_the_start() -> None:
    limits = Divergence(grace=0.6, patience=0.1)
    assert not diverges_from_baseline(curve(inferior, 0.69 * EPOCHS), BASELINE, EPOCHS, limits).separated
    assert diverges_from_baseline(curve(inferior, 0.75 * EPOCHS), BASELINE, EPOCHS, limits).separated


def test_a_gap_must_last() -> None:
    def spike(epoch: float) -> float:
        return baseline_loss(epoch) + (3.0 if 40 < epoch < 45 else 0.0)

    assert not diverges_from_baseline(curve(spike), BASELINE, EPOCHS).separated
    assert diverges_from_baseline(curve(spike), BASELINE, EPOCHS, Divergence(patience=0.03)).separated


def test_a_gap_that_closes_in_time_is_waited_for() -> None:
    def closing(epoch: float) -> float:
        return baseline_loss(epoch) + max(0.0, 2.0 * (1 - epoch / 50))

    assert not diverges_from_baseline(curve(closing), BASELINE, EPOCHS).separated


def test_a_gap_within_the_baselines_own_spread_is_none() -> None:
    wide = [curve(lambda epoch, up=up: baseline_loss(epoch) + up, seed=i) for i, up in enumerate((-0.4, 0.0, 0.4))]
    assert not diverges_from_baseline(curve(inferior), wide, EPOCHS).separated
    assert diverges_from_baseline(curve(inferior), wide, EPOCHS, Divergence(spreads=0.5)).separated


def test_too_few_seeds_of_the_baseline_decide_nothing() -> None:
    assert not diverges_from_baseline(curve(inferior), BASELINE[:1], EPOCHS).separated
    assert not diverges_from_baseline(curve(inferior), [], EPOCHS).separated
    behind = [curve(baseline_loss, 20, seed=seed) for seed in range(5)]  # still training
    assert not diverges_from_baseline(curve(inferior), behind, EPOCHS).separated


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_has_separated_at_once(value: float) -> None:
    points = curve(baseline_loss, 3)
    points.append(Point(examples=3100, epoch=3.1, seconds=3.1, train_loss=value))
    for baseline in (BASELINE, []):
        found = diverges_from_baseline(points, baseline, EPOCHS)
        assert (found.separated, found.epoch, found.gap) == (True, 3.1, None)


def test_a_better_curve_is_no_worse() -> None:
    assert not diverges_from_baseline(curve(lambda epoch: 0.5 * baseline_loss(epoch)), BASELINE, EPOCHS).separated


def test_one_point_an_epoch_is_enough() -> None:
    assert diverges_from_baseline(curve(inferior, an_epoch=1), BASELINE, EPOCHS).separated
    assert not diverges_from_baseline(curve(warming_up, an_epoch=1), BASELINE, EPOCHS).separated


def test_a_bin_that_more_points_will_fill_decides_nothing() -> None:
    """Bins end at 22.5, 23.4 and 24.3: above the baseline in one of them and at the first point of the next."""

    def spike(epoch: float) -> float:
        return baseline_loss(epoch) + (0.2 * (epoch - 20) if 22.5 < epoch <= 23.5 else 0.0)

    limits = Divergence(patience=0.001)
    for until in (23.5, 23.75, 24.25, EPOCHS):
        assert not diverges_from_baseline(curve(spike, until, noise=0.0), BASELINE, EPOCHS, limits).separated
    lasting = curve(lambda epoch: baseline_loss(epoch) + max(0.0, 0.2 * (epoch - 20)), 24.5, noise=0.0)
    assert diverges_from_baseline(lasting, BASELINE, EPOCHS, limits).separated


@settings(derandomize=True, deadline=None, database=None, max_examples=60)
@given(
    gap=st.floats(-1, 3),
    noise=st.floats(0, 0.5),
    an_epoch=st.sampled_from([1, 3, 4]),
    seed=st.integers(0, 99),
    cut=st.floats(0.01, 1),
)
def test_what_was_decided_stays_decided(gap: float, noise: float, an_epoch: int, seed: int, cut: float) -> None:
    """More points of the trial change neither that it separated nor where: it does not matter when one looks."""
    points = curve(lambda epoch: baseline_loss(epoch) + gap, EPOCHS, seed, noise, an_epoch)
    early = diverges_from_baseline(points[: max(1, round(cut * len(points)))], BASELINE, EPOCHS)
    late = diverges_from_baseline(points, BASELINE, EPOCHS)
    if early.separated:
        assert late == early
