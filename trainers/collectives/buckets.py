"""Parameters that travel together. Imports no torch."""

from dataclasses import dataclass

BUCKET_BYTES = 2**20
"""Of a bucket, at least, unless a spec says otherwise."""
IN_FLIGHT = 2
"""Buckets that are summed at the same time, likewise."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that lie side by side and travel together."""

    span: slice
    names: tuple[str, ...]


def ordered_bucket_bytes(size: int) -> int:
    """Of a canonical sum over so many workers, at least, in one bucket: 1 MiB, and with more than four of them as much
    more that messages become no shorter."""
    return int(BUCKET_BYTES << max(0, (size - 1).bit_length() - 2))
