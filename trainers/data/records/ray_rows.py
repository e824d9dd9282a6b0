"""The rows of a Ray Dataset as examples. Ray is not met here: who opens the data is given a way to its rows."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.records.columns import Columns
from trainers.data.records.rows import Taken, brings_one, split, taken
from trainers.data.records.table import columns_of_table
from trainers.data.records.table_files import AnyColumn, TableFile, values_of_arrow
from trainers.errors import SpecRejected


class Rows(Protocol):
    """The rows of one Ray Dataset in their order, which lie in blocks in the cluster's object store."""

    schema: pa.Schema
    largest: int
    """The largest whole number in the last column that is taken; -1 where it holds none."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Row i by the names of its columns, with arrays of numpy that cannot be written."""

    def parts(self, name: str) -> Iterator[pa.ChunkedArray]:
        """A column, block after block."""


OpenRows = Callable[[], Sequence[Rows]]
"""Gives the rows for training, maybe those for validation, and those for the test; where there is but one Dataset, the
spec says how many of its rows are held out."""


class RayExamples:
    """Some of the rows, as a map-style dataset."""

    def __init__(self, rows: Rows, chosen: Int64Array, of: Taken) -> None:
        self._rows, self._chosen, self._of = rows, chosen, of
        first = rows[0]
        self._are_tokens = len(of.names) == 1 and _are_tokens(first[of.names[0]])
        if of.is_pair and pa.types.is_integer(rows.schema.field(of.names[-1]).type):
            self.classes = rows.largest + 1
        if self._are_tokens:
            self.vocabulary = rows.largest + 1

    @property
    def targets(self) -> Any:
        """(N,) the labels, -1 where one is missing; nothing where there are none."""
        if not hasattr(self, "classes"):
            return ()
        return pc.fill_null(_whole(self._rows, self._of.names[-1]), -1).to_numpy()[self._chosen]

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, i: int) -> Any:
        """Raises ValueError where a value is missing."""
        row = self._rows[int(self._chosen[i])]
        parts = {name: _value(row[name]) for name in self._of.names}
        if missing := [name for name, part in parts.items() if part is None]:
            raise ValueError(f"{missing[0]} is missing")
        if self._are_tokens:
            (tokens,) = parts.values()
            return tokens[:-1], tokens[1:]
        return self._of.example(parts)


def read_ray(data: DataSpec, open_rows: OpenRows | None) -> Columns | tuple[RayExamples, ...]:
    """The Ray Dataset that a spec names.

    Numbers and words with a target are a table. Other rows are read one by one: a pair where one column besides the
    target is taken, whose whole numbers are labels, else a dict by the columns' names; of a single column of tokens,
    these and those that follow them.

    Raises:
        SpecRejected: There is no cluster here that would hold it, or a column is not there.
        DataLost: The object store has lost some of it.
    """
    if open_rows is None:
        raise SpecRejected(
            f"data: {data.name} lies in the object store of a Ray cluster, and this runs without one; train it by "
            "`millrace run`, train() or a service, or name the files as parquet here"
        )
    train, *given = open_rows()
    if len(given) == 2 and data.carved:
        raise brings_one(data.name)
    of = taken_of_ray(data, train.schema.names)
    for rows in given:
        if missing := [name for name in of.names if name not in rows.schema.names]:
            raise SpecRejected(f"data: a held-out set of {data.name} has no column {missing[0]!r}")
    if data.target and all(_is_cell(train.schema.field(name).type) for name in of.names):
        tables = [_RayTable(data.name, rows) for rows in (train, *given)]
        return columns_of_table(data.model_copy(update={"columns": of.names[:-1]}), tables, [data.name] * len(tables))
    others = [RayExamples(rows, np.arange(len(rows)), of) for rows in given]
    if given and not data.carved:
        return RayExamples(train, np.arange(len(train)), of), *others
    chosen, rest = split(data, len(train))
    return RayExamples(train, chosen, of), RayExamples(train, rest, of), *others


def taken_of_ray(data: DataSpec, names: Sequence[str]) -> Taken:
    """Which columns a spec takes. Raises SpecRejected where one is not there."""
    return taken(data.model_copy(update={"root": data.ray_function or data.root}), names)


class _RayTable(TableFile):
    """The rows of one Ray Dataset."""

    def __init__(self, name: str, rows: Rows) -> None:
        self._name, self._rows, self.names, self.num_rows = name, rows, list(rows.schema.names), len(rows)

    def _values(self, name: str) -> tuple[AnyColumn, Any]:
        return values_of_arrow(self._name, name, _whole(self._rows, name))

    def _found(self, name: str, row: int) -> Any:
        return _whole(self._rows, name)[row].as_py()

    def _place(self, row: int) -> str:
        return f"{self._name}, row {row}"


def _whole(rows: Rows, name: str) -> pa.ChunkedArray:
    """A column of all blocks, whose types may differ: one without a fraction may hold integers."""
    tables = [pa.table({name: part}) for part in rows.parts(name)]
    return pa.concat_tables(tables, promote_options="permissive").column(0)


def _value(value: Any) -> Any:
    """As minibatches are made of it: a copy, since nobody may write into the object store; pixels as (C, H, W)."""
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] in (1, 3, 4) and value.shape[0] not in (1, 3, 4):
        value = value.transpose(2, 0, 1)  # Ray Data reads photographs with their channels last
    return value.copy()


def _is_cell(kind: pa.DataType) -> bool:
    """Whether a column holds numbers or words."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    return bool(
        is_number or pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _are_tokens(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and np.issubdtype(value.dtype, np.integer)


def largest_number(column: pa.ChunkedArray) -> int:
    """The largest in a column of whole numbers, or of lists of such; -1 where it holds none."""
    found = [pc.max(numbers).as_py() for chunk in column.chunks if pa.types.is_integer((numbers := _flat(chunk)).type)]
    return max((number for number in found if number is not None), default=-1)


def _flat(chunk: pa.Array) -> pa.Array:
    """All that is in the lists of a column, one after the other."""
    if isinstance(chunk, pa.ExtensionArray):  # Ray's own for arrays
        chunk = chunk.storage
    if pa.types.is_struct(chunk.type):  # of different shapes, which stand beside the numbers
        names = [field.name for field in chunk.type]
        chunk = chunk.field("data") if "data" in names else chunk
    is_list = pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type)
    return pc.list_flatten(chunk) if is_list or pa.types.is_fixed_size_list(chunk.type) else chunk
