"""Which figures of a claim count as found again."""

import pytest

from benchmarks.papers.reproduced import Found, by_chance

GUIDE = {0: 0.30, 1: 0.31, 2: 0.32}


@pytest.mark.parametrize(
    ("again", "answer"),
    [
        (GUIDE, "same bits"),
        ({0: 0.30}, "same bits"),
        ({0: 0.31, 1: 0.32, 2: 0.33}, "found again"),
        ({0: 0.41, 1: 0.42, 2: 0.43}, "not found again"),
        ({0: 0.31}, "too few seeds"),
    ],
)
def test_a_figure_is_found_again_within_the_interval_of_the_difference(again: dict[int, float], answer: str) -> None:
    assert Found("shuffle", "none", "error", GUIDE, again).answer == answer


@pytest.mark.parametrize(("figures", "most"), [(1, 1), (10, 3), (100, 15)])
def test_one_figure_in_ten_is_not_found_again_by_chance(figures: int, most: int) -> None:
    """The 95th percentiles of the binomial distribution, from tables."""
    assert by_chance(figures) == most
