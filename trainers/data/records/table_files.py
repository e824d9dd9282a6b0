"""Files that hold tables: a column at a time, as float64 or as words, with the place of what is missing."""

import csv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainers.data.config import DataSpec
from trainers.errors import DataNotFound, SpecRejected

AnyColumn = npt.NDArray[Any]


class Table(ABC):
    """Columns with names, of one length."""

    names: list[str]
    num_rows: int
    given: tuple[int, ...] = ()
    """How many of the rows, the last ones, are sets besides the training set: none, a test set, or a validation set and
    a test set."""

    @abstractmethod
    def column(self, name: str) -> AnyColumn:
        """(num_rows,) float64 where all values are numbers, else words. Raises SpecRejected where one is missing."""


class CsvTable(Table):
    """A CSV file in memory, whose first line names the columns."""

    def __init__(self, data: DataSpec) -> None:
        """Raises DataNotFound, and SpecRejected for a row of another length or a field that is empty."""
        self._path = Path(data.root)
        if not self._path.is_file():
            raise DataNotFound(f"there is no file {self._path.absolute()}; set data.root to a CSV file")
        wanted = {*data.columns, data.target}
        with self._path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            self.names = next(reader, [])
            self._read = [not data.columns or name in wanted for name in self.names]
            rows, self._lines = [], []
            for row in reader:
                if row:
                    self._check(row, reader.line_num)
                    rows.append(row)
                    self._lines.append(reader.line_num)
        self._columns = [np.asarray(column) for column in zip(*rows, strict=True)]
        self.num_rows = len(rows)
        _check_rows(self._path, self.num_rows)

    def column(self, name: str) -> AnyColumn:
        column = self._columns[self.names.index(name)]
        try:
            numbers = column.astype(np.float64)
        except ValueError:
            return column
        if not np.isfinite(numbers).all():
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise SpecRejected(f"data: {self._path}, line {self._lines[row]}: {name} is {column[row]}; {REMEDY}")
        return numbers

    def _check(self, row: list[str], line: int) -> None:
        if len(row) != len(self.names):
            raise SpecRejected(
                f"data: {self._path}, line {line}, has {len(row)} fields and the first line {len(self.names)}"
            )
        for name, value, is_read in zip(self.names, row, self._read, strict=True):
            if not value and is_read:
                raise SpecRejected(f"data: {self._path}, line {line}: {name} is empty; {REMEDY}")


class ParquetTable(Table):
    """A Parquet file, or a folder of them in the order of their names; a column is read when it is asked for."""

    def __init__(self, data: DataSpec) -> None:
        """Raises DataNotFound, and SpecRejected for a file that is none."""
        root = Path(data.root)
        files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
        if not files or not files[0].is_file():
            raise DataNotFound(
                f"there is no Parquet file at {root.absolute()}; set data.root to one, or to a folder of them"
            )
        self._files = [(path, _opened(path)) for path in files]
        schemas = [file.schema_arrow for _, file in self._files]
        self.names = list(schemas[0].names)
        for (path, _), schema in zip(self._files, schemas, strict=True):
            if missing := [name for name in self.names if name not in schema.names]:
                raise SpecRejected(f"data: {path} has no column {missing[0]!r}, and {files[0].name} has one")
        self.num_rows = sum(file.metadata.num_rows for _, file in self._files)
        _check_rows(root, self.num_rows)

    def column(self, name: str) -> AnyColumn:
        return np.concatenate([values_of_arrow(path, name, file.read([name]).column(0)) for path, file in self._files])


class JoinedTables(Table):
    """Tables with the same columns, one after the other: that of the training set, and those of other sets."""

    def __init__(self, tables: Sequence[Table], roots: Sequence[str]) -> None:
        self._tables, self._roots, self.names = tables, roots, tables[0].names
        sizes = [table.num_rows for table in tables]
        self.num_rows, self.given = sum(sizes), tuple(sizes[1:])

    def column(self, name: str) -> AnyColumn:
        """Raises SpecRejected also where one of them lacks the column, or has words where the first has numbers."""
        found = []
        for table, root in zip(self._tables, self._roots, strict=True):
            if name not in table.names:
                raise SpecRejected(f"data: {root} has no column {name!r}, and {self._roots[0]} has one")
            found.append(table.column(name))
            if found[0].dtype.kind != found[-1].dtype.kind:
                raise SpecRejected(f"data: {root}: {name} has words, and {self._roots[0]} numbers, or the reverse")
        return np.concatenate(found)


REMEDY = "fill it, drop the row, or leave the column out of data.columns"


def _opened(path: Path) -> Any:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise SpecRejected(f"data: {path} is no Parquet file: {error}") from error


def values_of_arrow(path: Path | str, name: str, column: Any) -> AnyColumn:
    """What a column of pyarrow holds, checked."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    is_words = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not is_words and not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise SpecRejected(
            f"data: {path}: {name} is {kind}, and numbers, truth values and words can be learned from; leave it out "
            "of data.columns, or make one of these of it"
        )
    if is_words:
        missing = np.asarray(column.is_null())
        values = np.asarray(column.fill_null("").to_numpy(), np.str_)
    else:
        values = np.asarray(column.cast(pa.float64()).fill_null(np.nan).to_numpy())
        missing = ~np.isfinite(values)
    if missing.any():
        row = int(np.flatnonzero(missing)[0])
        raise SpecRejected(f"data: {path}, row {row}: {name} is {column[row].as_py()}; {REMEDY}")
    return values


def _check_rows(path: Path, num_rows: int) -> None:
    if num_rows < 2:
        raise SpecRejected(f"data: {path} has {num_rows} rows; give two at least")
