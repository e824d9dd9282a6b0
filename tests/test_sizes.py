"""Sizes of memory in words."""

import pytest

from trainers.sizes import size_words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (99_900, "99.9 kB"),
        (100_000, "100 kB"),
        (812_000_000, "812 MB"),
        (3e9, "3.0 GB"),
        (2.5e12, "2,500 GB"),
    ],
)
def test_the_unit_is_the_largest_of_which_there_is_one(count: float, words: str) -> None:
    assert size_words(count) == words
