"""Cutting flat vectors into slices."""

import itertools
from collections.abc import Sequence

ALIGN = 64
"""Slices and chunks begin at multiples of this many elements. So every element is processed by the same vector
instructions however the vector is divided, and gets the same bits."""

PARAMETER_ALIGN = 16
"""Elements of float32 in a cache line: no two parameters share one."""


def within(parts: Sequence[slice], cut: slice) -> tuple[slice, ...]:
    """The intersections of the parts with `cut`, relative to its start."""
    clipped = ((max(part.start, cut.start), min(part.stop, cut.stop)) for part in parts)
    return tuple(slice(a - cut.start, b - cut.start) for a, b in clipped if a < b)


def aligned(numel: int, to: int = ALIGN) -> int:
    """`numel` rounded up to a multiple of `to`."""
    return -(-numel // to) * to


def cuts_at(places: Sequence[int], count: int) -> list[slice]:
    """Divide [places[0], places[-1]) into `count` contiguous slices, cut at some of the places in between, each as near
    to its share as they allow; where there are enough of them no slice is empty."""
    chosen, first, last = [0], 0, len(places) - 1
    for i in range(1, count):
        wanted = places[0] + (places[-1] - places[0]) * i / count
        begin, end = min(first + 1, last), max(last - (count - i), first + 1)
        first = min(range(begin, min(end, last) + 1), key=lambda k: abs(places[k] - wanted))
        chosen.append(first)
    return [slice(places[a], places[b]) for a, b in itertools.pairwise([*chosen, last])]


def spans(numel: int, count: int, to: int = ALIGN) -> list[slice]:
    """Divide [0, numel) into `count` contiguous slices of nearly equal size, cut at multiples of `to`."""
    units = -(-numel // to)
    cuts = [min(units * i // count * to, numel) for i in range(count + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]
