"""A number by which the rows of a dataset are known again, however they are divided into blocks."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

UInt64Array = npt.NDArray[np.uint64]

AT_ONCE = 2**14
"""Rows whose bytes are held at a time."""
STEP = 0x9E3779B97F4A7C15
"""The digest is a polynomial in this odd number modulo 2**64, with a hash of row i as its coefficient i, so that those
of blocks are put together to that of all."""
MODULUS = 2**64
MISSING = np.uint64(0x7FF8_0000_6D69_7373)
"""The bits of a number that is missing: a NaN that nothing computes."""
PICKLED = "ray.data.arrow_pickled_object"
"""Objects of Python, of which equal ones need not have equal bytes: they are not looked at."""


def digest(table: pa.Table, names: Sequence[str]) -> int:
    """Of these columns of a block. Numbers count by their values, whatever type a block keeps them in."""
    found = 0
    for start in reversed(range(0, len(table), AT_ONCE)):
        part = table.select(list(names)).slice(start, AT_ONCE)
        rows = np.fromiter(map(_hash, _rows(part)), np.uint64, len(part))
        powers = np.full(len(part), STEP, np.uint64)
        powers[0] = 1
        with np.errstate(over="ignore"):  # modulo 2**64
            own = int((rows * np.cumprod(powers, dtype=np.uint64)).sum(dtype=np.uint64))
        found = (own + pow(STEP, len(part), MODULUS) * found) % MODULUS
    return found


def joined(blocks: Iterable[tuple[int, int]]) -> int:
    """The digest of all rows. blocks: How many rows each has, and its digest, in their order."""
    found, power = 0, 1
    for rows, own in blocks:
        found = (found + power * own) % MODULUS
        power = power * pow(STEP, rows, MODULUS) % MODULUS
    return found


def _hash(row: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), "little")


def _rows(table: pa.Table) -> Iterable[bytes]:
    """What stands in each row."""
    numbers, others = [np.empty((0, len(table)), np.uint64)], [[b""] * len(table)]
    for column in table.columns:
        array = _plain(column)
        if _is_number(array.type):
            numbers.append(_bits(array)[None])
        else:
            others.append(_bytes(array))
    matrix = np.ascontiguousarray(np.concatenate(numbers).T)  # (rows, columns)
    return (bits.tobytes() + b"".join(parts) for bits, *parts in zip(matrix, *others, strict=True))


def _plain(array: pa.Array) -> pa.Array:
    """Without what only says how it is kept."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ExtensionArray):
        return pa.nulls(len(array)) if array.type.extension_name == PICKLED else _plain(array.storage)
    return _plain(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _bits(array: pa.Array) -> UInt64Array:
    """(rows,): numbers as float64, which is exact but for large integers."""
    values = pc.fill_null(array, False if pa.types.is_boolean(array.type) else 0)
    bits: UInt64Array = values.to_numpy(zero_copy_only=False).astype(np.float64).view(np.uint64)
    bits[pc.is_null(array).to_numpy(zero_copy_only=False)] = MISSING
    return bits


def _bytes(array: pa.Array) -> list[bytes]:
    """What each row holds, with its length before it."""
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and _is_number(kind.value_type) and not array.null_count and not array.flatten().null_count:
        flat = array.flatten().to_numpy(zero_copy_only=False)
        ends = np.cumsum(pc.list_value_length(array).to_numpy(zero_copy_only=False)).tolist()
        found = [flat[first:end].tobytes() for first, end in zip([0, *ends], ends, strict=False)]
    elif pa.types.is_struct(kind) and not array.null_count:
        fields = [_bytes(_plain(array.field(place))) for place in range(kind.num_fields)]
        found = [b"".join(parts) for parts in zip(*fields, strict=True)]
    else:
        found = [repr(value).encode() for value in array.to_pylist()]
    return [len(one).to_bytes(8, "little") + one for one in found]
