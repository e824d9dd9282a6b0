"""Parameters that travel together."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bucket:
    """Parameters that lie side by side and travel together."""

    span: slice
    names: tuple[str, ...]
