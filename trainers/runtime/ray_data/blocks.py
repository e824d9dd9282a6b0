"""The blocks of a Ray Dataset: executed once into the object store, each example found by its place."""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers import user_code
from trainers.data.config import DataSpec
from trainers.errors import DataLost, DataNotFound, UserCodeFailed
from trainers.runtime.actor_handles import CONTROL
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.gone import GONE

if TYPE_CHECKING:
    import pyarrow as pa

KEPT_BYTES = 256 * 2**20
"""Of blocks that a process keeps mapped, so that the store cannot move them away. One more is kept in any case."""


@dataclass(frozen=True)
class Blocks:
    """Where the rows of one Ray Dataset lie, in their order."""

    refs: tuple[Any, ...]
    rows: tuple[int, ...]
    """Of each block; none is empty."""
    num_bytes: int
    largest: int
    """The largest whole number in the last column that the spec takes, by which labels or tokens are counted; -1 where
    it holds none. Found once, where the blocks are."""
    digest: str
    """By which the rows are known again when the Dataset is executed anew."""


def dataset_name(job_id: str) -> str:
    """The actor that holds a run's Ray Dataset."""
    return f"{job_id}/dataset"


def named_datasets(data: DataSpec) -> list[Any]:
    """The Ray Datasets that a spec names: for training, maybe for validation, for the test. Nothing is executed.

    Raises:
        DataNotFound: There is no such folder.
        UserCodeFailed: The function raised, or returned something else.
    """
    from ray.data import DataContext, Dataset, read_parquet

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True  # example i is the same one whenever the blocks are made
    if not data.ray_function:
        if not Path(data.root).exists():
            raise DataNotFound(f"there is no {data.root}; set data.root to a Parquet file, or a folder of such")
        return [read_parquet(data.root)]
    returned = user_code.call(data.ray_function, root=data.root)
    found = list(returned) if isinstance(returned, tuple | list) else [returned]
    if len(found) not in (1, 2, 3) or not all(isinstance(one, Dataset) for one in found):
        raise UserCodeFailed(
            f"{data.ray_function} returned {type(returned).__name__}; it must return a ray.data.Dataset, or two, for "
            "training and for the test, or three, with one for validation before the test"
        )
    for one in found:  # a context of the function's own
        one.context.execution_options.preserve_order = True
    return found


def executed(dataset: Any, data: DataSpec) -> tuple[Any, Blocks]:
    """A Ray Dataset with its blocks in the object store, which stay there as long as the first of what is returned.

    Raises:
        UserCodeFailed: It cannot be executed, or has no rows.
        SpecRejected: It has not the columns that the spec takes.
    """
    from trainers.data.records.ray_rows import taken_of_ray  # with torch, which the coordinator does not load
    from trainers.data.records.row_digest import joined

    try:
        done = dataset.materialize()
        bundles = list(done.iter_internal_ref_bundles())
    except Exception as error:  # whatever the functions in it raise, and what Ray Data makes of that
        cause = getattr(error, "cause", None) or error
        raise UserCodeFailed(f"the Ray Dataset cannot be executed: {type(cause).__name__}: {cause}") from error
    blocks = [block for bundle in bundles for block in bundle.blocks if block.metadata.num_rows]
    if not blocks:
        raise UserCodeFailed("the Ray Dataset has no rows")
    refs = tuple(block.ref for block in blocks)
    names = taken_of_ray(data, _accessor(ray.get(refs[0])).to_arrow().schema.names).names
    looked_at = ray.remote(_looked_at).options(num_cpus=1)
    numbers, digests = zip(*ray.get([looked_at.remote(ref, names) for ref in refs]), strict=True)
    size = sum(block.metadata.size_bytes or 0 for block in blocks)
    rows = tuple(int(block.metadata.num_rows) for block in blocks)
    whole = joined(zip(rows, digests, strict=True))
    return done, Blocks(refs, rows, size, max(numbers), f"{sum(rows)} rows {whole:016x}")


def _looked_at(block: Any, names: tuple[str, ...]) -> tuple[int, int]:
    """The largest number in the last of these columns, and the digest of all of them."""
    from trainers.data.records.ray_rows import largest_number
    from trainers.data.records.row_digest import digest

    table = _accessor(block).to_arrow()
    return largest_number(table.column(names[-1])), digest(table, names)


class BlockRows:
    """The rows of a Ray Dataset, read where they lie: blocks on this node are mapped, others are brought here once for
    all of its processes."""

    def __init__(self, blocks: Blocks, timeout_s: float) -> None:
        """timeout_s: After so long a block that does not come is lost."""
        self._blocks, self._timeout_s = blocks, timeout_s
        self._ends = np.cumsum(blocks.rows)
        self.largest = blocks.largest
        self._kept: OrderedDict[int, Any] = OrderedDict()  # accessors, by the block's number; the last used one last
        self.schema: pa.Schema = self._block(0).to_arrow().schema

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, i: int) -> dict[str, Any]:
        number = int(np.searchsorted(self._ends, i, side="right"))
        place = i - int(self._ends[number]) + self._blocks.rows[number]
        row = _accessor(self._block(number).slice(place, place + 1)).to_numpy()
        return {name: _first(values) for name, values in row.items()}

    def parts(self, name: str) -> "Iterator[pa.ChunkedArray]":
        for number in range(len(self._blocks.refs)):
            yield self._block(number).to_arrow().column(name)

    def _block(self, number: int) -> Any:
        if number not in self._kept:
            self._kept[number] = _accessor(self._fetched(number))
            while len(self._kept) > 1 and sum(one.size_bytes() for one in self._kept.values()) > KEPT_BYTES:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]

    def _fetched(self, number: int) -> Any:
        try:
            return ray.get(self._blocks.refs[number], timeout=self._timeout_s)
        except (ray.exceptions.ObjectLostError, ray.exceptions.GetTimeoutError) as error:
            raise DataLost(f"block {number} of the Ray Dataset is lost ({type(error).__name__})") from None


@dataclass(frozen=True)
class RowsOfRun:
    """How a process of a run comes to the rows of its Ray Dataset."""

    job_id: str
    data: DataSpec

    def __call__(self) -> list[BlockRows]:
        """The rows of each Dataset: for training, maybe for validation, for the test.

        Raises:
            DataLost: Nobody holds them any more.
        """
        try:
            holder = ray.get_actor(dataset_name(self.job_id), NAMESPACE)
            found = ray.get(holder.blocks.options(concurrency_group=CONTROL).remote())
        except (ValueError, *GONE):
            raise DataLost("the process that held the Ray Dataset is lost") from None
        return [BlockRows(blocks, self.data.timeout_s / 2) for blocks in found]  # before the worker counts as hanging


def _accessor(block: Any) -> Any:
    """Ray Data's way to a block, which may be a table of pyarrow or of pandas."""
    from ray.data.block import BlockAccessor

    return BlockAccessor.for_block(block)


def _first(values: Any) -> Any:
    """The value of a column of one row, missing where it is none."""
    value = values[0]
    return value.item() if isinstance(value, np.generic) else value
