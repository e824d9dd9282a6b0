"""The rows of a Ray Dataset are known again, whatever its blocks are, and any change of them is seen."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainers.data.records import row_digest
from trainers.data.records.row_digest import digest, joined

NUM = 20
COLUMNS: dict[str, Any] = {
    "whole": list(range(NUM)),
    "part": [None if i == 3 else i / 3 for i in range(NUM)],
    "flag": [i % 2 == 0 for i in range(NUM)],
    "word": pa.array([f"word {i % 4}" for i in range(NUM)]).dictionary_encode(),
    "pixels": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6 * NUM, dtype=np.uint8)), 6),
    "tokens": [list(range(i)) for i in range(NUM)],
    "shaped": [{"data": [1.0] * (1 + i % 3), "shape": [1, 1 + i % 3]} for i in range(NUM)],
    "deep": [[[i], [i, None]] for i in range(NUM)],
}
TABLE = pa.table(COLUMNS)


def of_blocks(table: pa.Table, size: int) -> int:
    blocks = [table.slice(first, size) for first in range(0, len(table), size)]
    return joined((len(block), digest(block, table.column_names)) for block in blocks)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_it_is_the_same_of_any_blocks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digest(TABLE, TABLE.column_names)
    assert of_blocks(TABLE, size) == whole
    in_chunks = pa.concat_tables([TABLE.slice(0, 4), TABLE.slice(4)])
    assert digest(in_chunks, TABLE.column_names) == whole
    monkeypatch.setattr(row_digest, "AT_ONCE", 4)
    assert of_blocks(TABLE, size) == whole


def test_numbers_count_by_their_values() -> None:
    integers, floats = pa.table({"x": [1, 2, None]}), pa.table({"x": [1.0, 2.0, None]})
    assert digest(integers, ["x"]) == digest(floats, ["x"])


@pytest.mark.parametrize("name", TABLE.column_names)
def test_any_change_is_seen(name: str) -> None:
    found = {digest(TABLE, [name])}
    turned, replaced, short = [*range(18), 19, 18], [*range(19), 0], [*range(19)]
    found |= {digest(TABLE.take(rows), [name]) for rows in (turned, replaced, short)}
    assert len(found) == 4
    assert digest(TABLE, [one for one in TABLE.column_names if one != name]) != digest(TABLE, TABLE.column_names)


def test_what_is_missing_is_no_number() -> None:
    values: list[Any] = [None, 0, 1, float("nan")]
    assert len({digest(pa.table({"x": pa.array([value], pa.float64())}), ["x"]) for value in values}) == 4
    assert len({digest(pa.table({"x": [value]}), ["x"]) for value in ("", "a", "None")}) == 3
