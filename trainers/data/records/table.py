"""A table in a CSV file: numbers and categories become vectors, one column is what is learned."""

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainers.data.config import DataSpec
from trainers.data.draws import permutation
from trainers.data.facts import DataFacts
from trainers.data.records.columns import Columns
from trainers.errors import DataNotFound, SpecRejected

Float32Array = npt.NDArray[np.float32]


def read_table(data: DataSpec) -> Columns:
    """The rows of the file at `data.root`, whose first line names the columns.

    A column of numbers is standardised by the mean and deviation of the training rows; any other column becomes one 0
    or 1 for each of its values. The target is labels if one of its values is no number.
    Which rows are test rows is fixed and does not depend on the seed of the run.

    Raises:
        DataNotFound: There is no such file.
        SpecRejected: A row is ragged, or the target is not there; names row and column.
    """
    names, rows = _rows(data)
    if data.target not in names:
        given = f"there is no column {data.target!r}" if data.target else "which column is learned is not said"
        raise SpecRejected(f"data.target: {given}; {data.root} has {', '.join(names)}")
    order = permutation(0, 0, len(rows))
    num_test = round(len(rows) * data.validation)
    if not 0 < num_test < len(rows):
        raise SpecRejected(
            f"data.validation: {data.validation:g} of {len(rows)} rows leaves {num_test} test rows and "
            f"{len(rows) - num_test} training rows; both are needed"
        )
    test, train = np.sort(order[:num_test]), np.sort(order[num_test:])
    table = np.asarray(rows)
    inputs = [_encoded(table[:, i], train) for i, name in enumerate(names) if name != data.target]
    if not inputs:
        raise SpecRejected(f"data: {data.root} has no column besides the target {data.target!r}")
    x = np.concatenate(inputs, axis=1)
    column = table[:, names.index(data.target)]
    numbers = _numbers(column)
    y: npt.NDArray[np.float32] | npt.NDArray[np.int64]
    if numbers is None:
        values, y = np.unique(column, return_inverse=True)
        facts = DataFacts((x.shape[1],), classes=len(values))
    else:
        y, facts = numbers, DataFacts((x.shape[1],), outputs=1)
    return Columns({"0": x[train], "1": y[train]}, {"0": x[test], "1": y[test]}, True, facts)


def _rows(data: DataSpec) -> tuple[list[str], list[list[str]]]:
    path = Path(data.root)
    if not path.is_file():
        raise DataNotFound(f"there is no file {path.absolute()}; set data.root to a CSV file with a line of names")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        names = next(reader, [])
        rows = []
        for row in reader:
            if row and len(row) != len(names):
                raise SpecRejected(
                    f"data: {path}, line {reader.line_num}, has {len(row)} fields and the first line {len(names)}"
                )
            if "" in row:
                column = names[row.index("")]
                raise SpecRejected(f"data: {path}, line {reader.line_num}: {column} is empty; fill it, or drop the row")
            if row:
                rows.append(row)
    if len(rows) < 2:
        raise SpecRejected(f"data: {path} has {len(rows)} rows; give two at least")
    return names, rows


def _numbers(column: npt.NDArray[np.str_]) -> Float32Array | None:
    """The column as numbers; None where one of them is none."""
    try:
        numbers = column.astype(np.float64)
    except ValueError:
        return None
    return numbers.astype(np.float32) if np.isfinite(numbers).all() else None


def _encoded(column: npt.NDArray[np.str_], train: npt.NDArray[np.int64]) -> Float32Array:
    """(rows, width): one standardised number, or one 0 or 1 for each value."""
    numbers = _numbers(column)
    if numbers is None:
        return np.asarray(column[:, None] == np.unique(column)[None], np.float32)
    mean, deviation = numbers[train].mean(), numbers[train].std() or 1.0
    return np.asarray((numbers - mean) / deviation, np.float32)[:, None]
