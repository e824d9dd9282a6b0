"""Parameters that travel together. Imports no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Parameters that lie side by side and travel together."""

    span: slice
    names: tuple[str, ...]


def ordered_bucket_bytes(size: int) -> int:
    """Of a canonical sum over so many workers, at least, in one bucket: 1 MiB, and with more than four of them as much
    more that messages become no shorter."""
    return int(2**20 << max(0, (size - 1).bit_length() - 2))
