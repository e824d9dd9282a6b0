"""Which figures of a claim count as found again."""

import pytest

from benchmarks.papers.reproduced import Found

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
