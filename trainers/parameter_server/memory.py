"""Where the versions and states of a shard lie: in mapped files, which outlive its process, or in memory of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainers.links.mapped import MappedFile
from trainers.optim.buffers import State
from trainers.optim.slices import ALIGN, aligned
from trainers.parameter_server.journal import PinJournal, ShardJournal
from trainers.parameter_server.record import Journal, JournalContents, NoJournal


@dataclass(frozen=True)
class MemoryPlan:
    """How a shard keeps its memory."""

    folder: Path
    index: int
    """The shard's."""
    capacity: int
    """Workers that may be connected at a time."""
    replicas: int
    """2: states and journal, and the ring where it is not mapped anyway, lie in mapped files."""


def own_ring(plan: MemoryPlan, numel: int) -> list[Tensor]:
    """The rows, (numel,) each, of a ring that only the shard reads."""
    rows = plan.capacity + 2
    if plan.replicas == 1:
        return list(torch.zeros(rows, numel))
    return list(MappedFile(plan.folder / f"ring-{plan.index}", rows, aligned(numel, ALIGN)).rows[:, :numel])


def two_states(plan: MemoryPlan, names: Sequence[str], numel: int) -> list[State]:
    """The rule's states of a slice, (numel,) each, for two versions."""
    if plan.replicas == 1 or not names:
        rows = torch.zeros(2 * len(names), numel)
    else:
        path = plan.folder / f"states-{plan.index}"
        rows = MappedFile(path, 2 * len(names), aligned(numel, ALIGN)).rows[:, :numel]
    return [dict(zip(names, half, strict=True)) for half in (rows[: len(names)], rows[len(names) :])]


def journal_of(plan: MemoryPlan, group: int, ring_is_read: bool) -> Journal:
    """The journal of a piece: of its readers alone, where workers read its ring and nothing else is to be kept."""
    path = plan.folder / f"journal-{plan.index}-{group}"
    if plan.replicas == 2:
        return ShardJournal(path, plan.capacity)
    return PinJournal(path, plan.capacity) if ring_is_read else NoJournal()


def read_journal(journal: Journal) -> JournalContents | None:
    """What the journal of a dead process contains of a piece; None where there is none."""
    return journal.read() if isinstance(journal, ShardJournal) else None
