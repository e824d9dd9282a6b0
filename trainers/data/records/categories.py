"""Categories as numbers."""

from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.draws import Int64Array

Float32Array = npt.NDArray[np.float32]
AnyColumn = npt.NDArray[Any]


def is_numbers(column: AnyColumn) -> bool:
    """Whether a column is one of numbers. Integers stand for categories."""
    return column.dtype.kind == "f"


def values_of(column: AnyColumn) -> AnyColumn:
    """The values that occur, sorted."""
    return np.unique(column)


def codes_of(column: AnyColumn, values: AnyColumn) -> Int64Array:
    """(rows,): the place of each value among `values`, from 1 on; 0 for one that is not among them."""
    places = np.searchsorted(values, column).clip(max=len(values) - 1)
    return np.where(values[places] == column, places + 1, 0).astype(np.int64)


def one_hot(codes: Int64Array, num_values: int) -> Float32Array:
    """(rows, num_values): a 1 at the place of each code, nothing for 0."""
    return np.asarray(codes[:, None] == np.arange(1, num_values + 1)[None], np.float32)
