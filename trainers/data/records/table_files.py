"""Files that hold tables: a column at a time, as float64 or as words, with the place of what is missing."""

import bisect
import csv
import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from trainers.data.batches import Skipped
from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.skipped import SkippedExamples
from trainers.errors import DataNotFound, SpecRejected

AnyColumn = npt.NDArray[Any]


class Table(ABC):
    """Columns with names, of one length."""

    names: list[str]
    num_rows: int
    skipped: tuple[Skipped, ...] = ()
    """The rows of the training set that are left out, by their numbers in the file, and what is wrong with each."""
    told: tuple[str, ...] = ()
    """What is wrong with those of other sets."""
    given: tuple[int, ...] = ()
    """How many of the rows, the last ones, are sets besides the training set: none, a test set, or a validation set and
    a test set."""

    @abstractmethod
    def column(self, name: str) -> AnyColumn:
        """(num_rows,) float64 where all values are numbers, else words. Raises SpecRejected where one is missing."""

    @abstractmethod
    def place(self, row: int) -> str:
        """Where a row is, in words."""


class TableFile(Table):
    """One table, some of whose rows may be left out."""

    _kept: Int64Array | None = None

    @abstractmethod
    def _values(self, name: str) -> tuple[AnyColumn, npt.NDArray[np.bool_]]:
        """The column with all rows, and which of them lack a value."""

    @abstractmethod
    def _found(self, name: str, row: int) -> Any:
        """What stands there, of all rows."""

    def _number(self, row: int) -> int:
        """By which a person finds a row, of all rows."""
        return row

    @abstractmethod
    def _place(self, row: int) -> str:
        """The place of a row, of all rows."""

    def column(self, name: str) -> AnyColumn:
        values, lacking = self._values(name)
        if self._kept is not None:
            return values[self._kept]
        if lacking.any():
            raise SpecRejected(self._wrong(name, int(np.flatnonzero(lacking)[0])))
        return values

    def place(self, row: int) -> str:
        return self._place(row if self._kept is None else int(self._kept[row]))

    def leave_out(self, names: Sequence[str], most: float) -> None:
        """Leave out the rows that lack a value in one of these columns; no more than `data.max_skipped` of them.

        Raises TooManySkipped.
        """
        wrong = dict[int, str]()
        watch = SkippedExamples(most, self.num_rows + len(self.skipped), wrong.__setitem__)
        watch.add([(-1 - number, why) for number, why in self.skipped])  # those that have no row
        wrong.clear()
        for name in names:
            for row in np.flatnonzero(self._values(name)[1]).tolist():
                watch.add([(row, self._wrong(name, row))])
        self._kept = np.setdiff1d(np.arange(self.num_rows), list(wrong))
        self.num_rows = len(self._kept)
        later = ((self._number(row), why) for row, why in wrong.items())
        self.skipped = tuple(sorted([*self.skipped, *later]))

    def _wrong(self, name: str, row: int) -> str:
        return f"data: {self._place(row)}: {name} is {self._found(name, row)}; {REMEDY}"


class CsvTable(TableFile):
    """A CSV file in memory, whose first line names the columns."""

    def __init__(self, data: DataSpec) -> None:
        """Raises DataNotFound, and SpecRejected for a row of another length, a field that is empty, or another encoding
        than UTF-8."""
        self._path = Path(data.root)
        if not self._path.is_file():
            raise DataNotFound(f"there is no file {self._path.absolute()}; set data.root to a CSV file")
        wanted = {*data.columns, data.target}
        reader = csv.reader(_lines(self._path))
        self.names = next(reader, [])
        self._read = [not data.columns or name in wanted for name in self.names]
        rows, self._lines = [], []
        skipped = list[Skipped]()
        for row in filter(None, reader):
            if (why := self._fault(row, reader.line_num)) is None:
                rows.append(row)
                self._lines.append(reader.line_num)
            elif data.on_error == "fail":
                raise SpecRejected(why)
            else:
                skipped.append((reader.line_num, why))
        self.skipped = tuple(skipped)
        self._columns = [np.asarray(column) for column in zip(*rows, strict=True)]
        self.num_rows = len(rows)
        _check_rows(self._path, self.num_rows)

    def _values(self, name: str) -> tuple[AnyColumn, npt.NDArray[np.bool_]]:
        column = self._columns[self.names.index(name)]
        try:
            numbers = column.astype(np.float64)
        except ValueError:
            return column, np.zeros(len(column), np.bool_)
        return numbers, ~np.isfinite(numbers)

    def _found(self, name: str, row: int) -> Any:
        return self._columns[self.names.index(name)][row]

    def _number(self, row: int) -> int:
        return self._lines[row]

    def _place(self, row: int) -> str:
        return f"{self._path}, line {self._lines[row]}"

    def _fault(self, row: list[str], line: int) -> str | None:
        if len(row) != len(self.names):
            return f"data: {self._path}, line {line}, has {len(row)} fields and the first line {len(self.names)}"
        for name, value, is_read in zip(self.names, row, self._read, strict=True):
            if not value and is_read:
                return f"data: {self._path}, line {line}: {name} is empty; {REMEDY}"
        return None


class ParquetTable(TableFile):
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

    def _values(self, name: str) -> tuple[AnyColumn, npt.NDArray[np.bool_]]:
        parts = [values_of_arrow(path, name, file.read([name]).column(0)) for path, file in self._files]
        values, lacking = zip(*parts, strict=True)
        return np.concatenate(values), np.concatenate(lacking)

    def _found(self, name: str, row: int) -> Any:
        (_, file), within = self._in_file(row)
        return file.read([name]).column(0)[within].as_py()

    def _place(self, row: int) -> str:
        (path, _), within = self._in_file(row)
        return f"{path}, row {within}"

    def _in_file(self, row: int) -> tuple[tuple[Path, Any], int]:
        sizes = [file.metadata.num_rows for _, file in self._files]
        place, within = place_in(sizes, row)
        return self._files[place], within


class JoinedTables(Table):
    """Tables with the same columns, one after the other: that of the training set, and those of other sets."""

    def __init__(self, tables: Sequence[Table], roots: Sequence[str]) -> None:
        self._tables, self._roots, self.names = tables, roots, tables[0].names
        self._sizes = [table.num_rows for table in tables]
        self.num_rows, self.given = sum(self._sizes), tuple(self._sizes[1:])
        self.skipped = tables[0].skipped
        self.told = tuple(left_out(why) for table in tables[1:] for _, why in table.skipped)
        if empty := [root for root, size in zip(roots, self._sizes, strict=True) if not size]:
            raise SpecRejected(f"data: {empty[0]} has no row that can be used")

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

    def place(self, row: int) -> str:
        place, within = place_in(self._sizes, row)
        return self._tables[place].place(within)


def place_in(sizes: Sequence[int], row: int) -> tuple[int, int]:
    """Which of some parts that lie one after the other a row is in, and where there."""
    ends = list(itertools.accumulate(sizes))
    place = bisect.bisect_right(ends, row)
    return place, row - (ends[place] - sizes[place])


def left_out(why: str) -> str:
    """What is told of a row that an evaluation goes without."""
    return f"{why.removeprefix('data: ').partition('; ')[0]}, so no evaluation has it"


REMEDY = "fill it, drop the row, or leave the column out of data.columns"


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text with their ends. Raises SpecRejected where one is not in UTF-8."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            yield from file
        except UnicodeDecodeError as error:
            before = re.split("[\udc80-\udcff]", path.read_text("utf-8", "surrogateescape"), maxsplit=1)[0]
            line = before.count("\n") + 1
            raise SpecRejected(f"data: {path}, line {line}, is not in UTF-8; save the file as UTF-8") from error


def _opened(path: Path) -> Any:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as error:
        raise SpecRejected(f"data: {path} is no Parquet file: {error}") from error


def values_of_arrow(path: Path | str, name: str, column: Any) -> tuple[AnyColumn, npt.NDArray[np.bool_]]:
    """What a column of pyarrow holds, and where a value is missing. Raises SpecRejected for other kinds of values."""
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
    return values, missing


def _check_rows(path: Path, num_rows: int) -> None:
    if num_rows < 2:
        raise SpecRejected(f"data: {path} has {num_rows} rows; give two at least")
