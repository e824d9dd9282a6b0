"""Rows of arrays that cannot be used."""

from collections.abc import Callable, Iterable

import numpy as np

from trainers.data.batches import Skipped
from trainers.data.draws import Int64Array
from trainers.data.skipped import SkippedExamples
from trainers.errors import UserCodeFailed


class BadRows:
    """Those of one set: the first is an error, unless they are left out."""

    def __init__(self, num_rows: int, most: float | None) -> None:
        """most: As `data.max_skipped`, where rows may be left out."""
        self._num_rows, self._found = num_rows, dict[int, str]()
        self._watch = None if most is None else SkippedExamples(most, num_rows, self._found.__setitem__)

    def add(self, rows: Iterable[int], why: Callable[[int], str]) -> None:
        """These cannot be used. Raises UserCodeFailed, or TooManySkipped where these are more than may be."""
        for row in rows:
            if self._watch is None:
                raise UserCodeFailed(why(row))
            self._watch.add([(row, why(row))])

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """All of them, with what is wrong."""
        return tuple(sorted(self._found.items()))

    @property
    def kept(self) -> Int64Array:
        """The others."""
        return np.setdiff1d(np.arange(self._num_rows), list(self._found))
