"""Medians, spreads, paired ratios and verdicts on known numbers."""

import pytest

from benchmarks.measurement.statistics import Spread, Target, paired


def test_spread_of_five() -> None:
    spread = Spread((5.0, 1.0, 4.0, 2.0, 3.0))
    assert (spread.median, spread.low, spread.high) == (3.0, 1.0, 5.0)
    assert spread.quartiles == (2.0, 4.0)


def test_spread_of_one_and_of_none() -> None:
    assert Spread((7.0,)).quartiles == (7.0, 7.0)
    with pytest.raises(ValueError, match="at least one"):
        Spread(())


def test_ratios_are_paired_by_round() -> None:
    # a machine that halves its speed in the second round: the ratio of each round is what it was
    assert paired([200.0, 100.0, 220.0], [100.0, 50.0, 100.0]).values == (2.0, 2.0, 2.2)
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.39, 1.39, 9.0), "**missed** by 0.7%"),
        ((1.4, 1.4, 0.1), "met"),
        ((1.5, 1.6, 1.4), "met, and what is in reach too"),
    ],
)
def test_verdict_goes_by_the_median(values: tuple[float, ...], verdict: str) -> None:
    assert Target("sync to DDP", 1.4, in_reach=1.5).verdict(Spread(values)) == verdict


def test_verdict_of_an_upper_bound() -> None:
    target = Target("seconds", 8.0, "at most")
    assert target.verdict(Spread((8.0,))) == "met"
    assert target.verdict(Spread((10.0,))) == "**missed** by 25.0%"
    assert target.verdict(None) == "not measured"
