"""Rows as a Ray Dataset has them, without Ray."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from trainers.data.records.ray_rows import largest_number


class ArrowRows:
    """Those of a table of pyarrow. A list is an array, as in Ray's blocks."""

    def __init__(self, table: pa.Table, last: str = "", blocks: int = 3) -> None:
        self.table, self.schema = table, table.schema
        self.largest = largest_number(table.column(last or table.column_names[-1]))
        size = -(-len(table) // blocks)
        self.blocks = [table.slice(start, size) for start in range(0, len(table), size)]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, i: int) -> dict[str, Any]:
        (row,) = self.table.slice(i, 1).to_pylist()
        kinds = {"pixels": np.uint8, "x": np.float32}
        return {
            name: np.array(value, kinds.get(name, np.int64)) if isinstance(value, list) else value
            for name, value in row.items()
        }

    def parts(self, name: str) -> Iterator[pa.ChunkedArray]:
        return (block.column(name) for block in self.blocks)
