"""Examples in tar shards, each found by its number."""

from pathlib import Path
from typing import Any

import numpy as np

from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array
from trainers.data.node_lock import Note
from trainers.data.records.rows import Taken, split, taken
from trainers.data.records.shards import DECODERS, LABEL, ShardIndex, ShardReader, indexed, shards_of
from trainers.errors import SpecRejected

TEST = ("val", "test")
"""With one of these begin the names of shards that hold the test set."""


class ShardExamples:
    """Some of the examples in shards, as a map-style dataset."""

    def __init__(self, index: ShardIndex, ids: Int64Array, of: Taken) -> None:
        self._reader, self._ids, self._of = ShardReader(index), ids, of
        if of.is_pair and of.names[-1] == LABEL:
            self.classes = int(index.labels.max(initial=-1)) + 1
            self.targets = index.labels[ids]

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, i: int) -> Any:
        """Raises ValueError, which names shard and member, where one cannot be read."""
        number = int(self._ids[i])
        return self._of.example({kind: self._reader.read(number, kind) for kind in self._of.names})


def read_webdataset(data: DataSpec, note: Note = lambda _: None) -> tuple[ShardExamples, ...]:
    """The training examples, maybe those for validation, and the test examples in the shards at `data.root`, a folder
    or a pattern, and at those of other sets that are named.

    Members are decoded by the ends of their names.

    Shards whose names begin with `val` or `test` hold the test set; if there are none, it is `data.validation` of the
    examples, always the same ones.

    Raises:
        DataNotFound: There are no shards.
        SpecRejected: A shard cannot be read, or has no member of a kind that is needed; names shard and example.
    """
    sets = [shards_of(path) for path in data.given_sets]
    named = {path for shards in sets for path in shards}
    index = indexed(data, sorted({*shards_of(data.root), *named}), note)
    first = (
        [kind for kind, size in zip(index.kinds, index.sizes[0], strict=True) if size >= 0] if len(index.shard) else []
    )
    of = taken(data, index.kinds if data.columns or data.target else first, LABEL)
    if unknown := [kind for kind in of.names if kind.rpartition(".")[2] not in DECODERS]:
        raise SpecRejected(
            f"data: {data.root} has members .{unknown[0]}, which nobody decodes here; name those to read in "
            f"data.columns, of {', '.join(sorted(DECODERS))}"
        )
    _check_members(index, of)
    found = [_examples_in(index, set(shards)) for shards in sets]
    usual = {path for path in index.shards if path.name.startswith(TEST)} - named
    train = _examples_in(index, set(index.shards) - named - usual)
    if len(found) < 2 and (not found or data.test is not None):
        brought = _examples_in(index, usual)
        if data.carved or not len(brought):
            chosen, others = split(data, len(train))
            found = [brought, *found] if data.test is None and len(brought) else found
            train, brought = train[chosen], train[others]
        found = [brought, *found]
    return tuple(ShardExamples(index, ids, of) for ids in (train, *found))


def _examples_in(index: ShardIndex, shards: set[Path]) -> Int64Array:
    return np.flatnonzero(np.array([path in shards for path in index.shards])[index.shard])


def _check_members(index: ShardIndex, of: Taken) -> None:
    for kind in of.names:
        lacking = np.flatnonzero(index.sizes[:, index.kinds.index(kind)] < 0)
        if len(lacking):
            shard = index.shard[lacking[0]]
            place = int(lacking[0]) - int(np.flatnonzero(index.shard == shard)[0])
            where = f"{index.shards[int(shard)]}: example {place} of the shard has no .{kind}"
            raise SpecRejected(
                f"data: {where}, like {len(lacking):,} of {len(index.shard):,}; leave it out of data.columns, or write "
                "the shards anew"
            )
