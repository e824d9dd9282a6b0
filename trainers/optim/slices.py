"""Cutting flat vectors into slices."""

import itertools
from collections.abc import Sequence

ALIGN = 64
"""Slices and chunks begin at multiples of this many elements. So every element is processed by the same vector
instructions however the vector is divided, and gets the same bits."""


def within(parts: Sequence[slice], cut: slice) -> tuple[slice, ...]:
    """The intersections of the parts with `cut`, relative to its start."""
    clipped = ((max(part.start, cut.start), min(part.stop, cut.stop)) for part in parts)
    return tuple(slice(a - cut.start, b - cut.start) for a, b in clipped if a < b)


def aligned(numel: int, to: int = ALIGN) -> int:
    """`numel` rounded up to a multiple of `to`."""
    return -(-numel // to) * to


def spans(numel: int, count: int, to: int = ALIGN) -> list[slice]:
    """Divide [0, numel) into `count` contiguous slices of nearly equal size, cut at multiples of `to`."""
    units = -(-numel // to)
    cuts = [min(units * i // count * to, numel) for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]
