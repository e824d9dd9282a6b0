"""The error of a run: median over its last five epochs (paper 4, section 5.1)."""

import pytest

from trainers.events import error_median


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([], None),
        ([(1, 0.9)], 0.1),
        ([(1, 0.5), (2, 0.9)], 0.3),
        ([(e, e / 100) for e in range(1, 91)], 0.12),
        ([(1, 0.1), (2, 0.2), (3, 0.9), (4, 0.7), (5, 0.8), (6, 0.6), (7, 0.75)], 0.25),
        ([(10, 0.1), (15, 0.5), (20, 0.9)], 0.1),  # every 5 epochs: only the last one lies within the last five
        ([(16, 0.1), (18, 0.5), (20, 0.9)], 0.5),
    ],
)
def test_median_of_the_last_five_epochs(evaluations: list[tuple[int, float]], expected: float | None) -> None:
    assert error_median(evaluations) == (None if expected is None else pytest.approx(expected))
