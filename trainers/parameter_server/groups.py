"""Groups of parameters that travel by themselves, and the parts of them that a shard holds. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainers.parameter_server.shard import Shard


@dataclass(frozen=True)
class GroupSlice:
    """A shard's part of one group: a parameter server of its own, with its own versions, states, clocks and applied
    identities, so that a fetch of a group is never torn, and what one group waits for no other does."""

    span: slice
    """Where it lies in the flat vector (P,)."""
    shard: Shard


def parts(cut: slice, groups: Sequence[slice]) -> dict[int, slice]:
    """What of each group lies in a shard's slice of the flat vector, by the group's number, in the order of the vector;
    groups of which nothing does are left out. No groups: the vector is one."""
    if not groups:
        return {0: cut}
    found = {i: slice(max(cut.start, g.start), min(cut.stop, g.stop)) for i, g in enumerate(groups)}
    return {group: span for group, span in found.items() if span.start < span.stop}
