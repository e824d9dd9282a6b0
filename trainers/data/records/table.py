"""Tables in files: numbers and categories become vectors, one column is what is learned."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainers.data.config import DataSpec
from trainers.data.facts import DataFacts
from trainers.data.records.categories import Float32Array, codes_of, is_numbers, one_hot, values_of
from trainers.data.records.columns import Columns
from trainers.data.records.rows import divided
from trainers.data.records.table_files import CsvTable, JoinedTables, ParquetTable, Table, TableFile, left_out
from trainers.errors import SpecRejected

SHOWN = 8
"""Names of classes that are told."""

OPEN: dict[str, type[CsvTable] | type[ParquetTable]] = {"csv": CsvTable, "parquet": ParquetTable}


def read_table(data: DataSpec) -> Columns:
    """The rows of the file, or of the files in the folder, at `data.root`, and of other sets that are named. Columns
    have names.

    A column of numbers is standardised by the mean and deviation of the training rows. Any other column, and any that
    `data.categories` names, becomes one 0 or 1 for each value of the training rows, or with `data.encoding: codes` the
    place of its value among them, from 1 on, behind all numbers. The target is labels if it is no column of numbers.
    Which rows are test rows is fixed and does not depend on the seed of the run.

    Raises:
        DataNotFound: There is no such file.
        SpecRejected: A row is ragged, a value is missing, or a column is not there; names row and column.
    """
    roots = (data.root, *data.given_sets)
    tables = [OPEN[data.name](data.model_copy(update={"root": root})) for root in roots]
    return columns_of_table(data, tables, roots)


def columns_of_table(data: DataSpec, tables: Sequence[TableFile], roots: Sequence[str]) -> Columns:
    """The same of tables that are open: that of the training set, and those of other sets. Columns are read one after
    the other."""
    names = _input_names(data, tables[0].names)
    for one, root in zip(tables, roots, strict=True):
        counts = Counter(one.names)
        if twice := [name for name in (*names, data.target) if counts[name] > 1]:
            raise SpecRejected(f"data: {root} has {counts[twice[0]]} columns named {twice[0]!r}; rename all but one")
    if data.on_error == "skip":
        for one in tables:
            one.leave_out([name for name in (*names, data.target) if name in one.names], data.max_skipped)
    table = JoinedTables(tables, roots) if len(tables) > 1 else tables[0]
    train, test, num_validation = divided(data, table.num_rows, table.given)
    numbers, categories = _Inputs(), _Inputs()
    told: list[str] = list(table.told)
    for name in names:
        column = _column(data, table, name)
        if is_numbers(column):
            mean, deviation = column[train].mean(), column[train].std() or 1.0
            numbers.add(np.asarray((column - mean) / deviation, np.float32)[:, None])
            continue
        values = values_of(column[train])
        codes = codes_of(column, values)
        if unseen := sorted({str(value) for value in column[codes == 0]}):
            told.append(f"{name} has {len(unseen)} values that no training row has, such as {unseen[0]}")
        if data.encoding == "codes":
            categories.add(codes[:, None].astype(np.float32), len(values) + 1)
        else:
            numbers.add(one_hot(codes, len(values)))  # in the order of the columns
    x = np.concatenate([*numbers.parts, *categories.parts], axis=1)
    column = _column(data, table, data.target)
    known = column[train] if data.given_sets else column
    y, facts = _target(column, known, x.shape[1], tuple(categories.sizes), told)
    if unknown := [row for row in test.tolist() if facts.classes and y[row] < 0]:
        why = [f"data: {table.place(row)}: no training row has the label {column[row]}" for row in unknown]
        if data.on_error == "fail":
            raise SpecRejected(f"{why[0]}; add some, or leave the row out")
        told += map(left_out, why)
        num_validation -= int(np.isin(test[:num_validation], unknown).sum())
        test = test[~np.isin(test, unknown)]
    held_out = {"0": x[test], "1": y[test]}
    return Columns({"0": x[train], "1": y[train]}, held_out, True, facts, tuple(told), num_validation, table.skipped)


class _Inputs:
    """Columns of the inputs that stand together."""

    def __init__(self) -> None:
        self.parts: list[Float32Array] = []
        self.sizes: list[int] = []

    def add(self, part: Float32Array, size: int = 0) -> None:
        """(rows, width). size: Of codes, how many there may be."""
        self.parts.append(part)
        self.sizes.append(size)


def _input_names(data: DataSpec, names: Sequence[str]) -> list[str]:
    """The columns that are read as inputs."""
    if not data.target:
        raise SpecRejected(f"data.target: which column is learned is not said; {data.root} has {', '.join(names)}")
    for field, wanted in (("target", (data.target,)), ("columns", data.columns), ("categories", data.categories)):
        for name in wanted:
            if name not in names:
                raise SpecRejected(f"data.{field}: there is no column {name!r}; {data.root} has {', '.join(names)}")
    found = [name for name in data.columns or names if name != data.target]
    if not found:
        raise SpecRejected(f"data: {data.root} has no column besides the target {data.target!r}")
    return found


def _column(data: DataSpec, table: Table, name: str) -> npt.NDArray[np.generic]:
    """(rows,): float64, or words where it holds some; and where `data.categories` has it, either, as categories."""
    column = table.column(name)
    if is_numbers(column) and name in data.categories:
        return column.astype(np.int64) if (column == np.floor(column)).all() else column.astype(np.str_)
    return column


def _target(
    column: npt.NDArray[np.generic],
    known: npt.NDArray[np.generic],
    width: int,
    categories: tuple[int, ...],
    told: list[str],
) -> tuple[npt.NDArray[np.generic], DataFacts]:
    """(rows,) of labels, -1 where one is not among those that are known, or of numbers; and the facts of the set."""
    if is_numbers(column):
        return column.astype(np.float32), DataFacts((width,), outputs=1, categories=categories)
    classes = values_of(known)
    more = ", ..." if len(classes) > SHOWN else ""
    told.append(f"its {len(classes)} classes are {', '.join(map(str, classes[:SHOWN]))}{more}")
    labels = codes_of(column, classes) - 1
    return labels, DataFacts((width,), classes=len(classes), categories=categories)
