"""From a spec to what one shard of a run works with: its memory, its update rule, its first version."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from trainers.errors import ShardLost
from trainers.optim.compress.build import compressor_of
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.groups import GroupSlice, parts
from trainers.parameter_server.memory import MemoryPlan, journal_of, own_ring, read_journal, two_states
from trainers.parameter_server.push_identity import IdentitySet
from trainers.parameter_server.shard import Shard, ShardConfig
from trainers.parameter_server.shared_memory import mapped_ring
from trainers.spec import TrainSpec
from trainers.training.messages import RunLayout
from trainers.training.optimizer import build_optimizer, rate_of_versions
from trainers.training.version_parts import VersionPart


@dataclass(frozen=True)
class ShardSetup:
    """One shard's."""

    spec: TrainSpec
    layout: RunLayout
    index: int

    @property
    def span(self) -> slice:
        """The shard's slice of the flat vector."""
        return slice(*self.layout.shards[self.index])

    def pieces(self, plan: MemoryPlan, is_mapped: bool) -> dict[int, GroupSlice]:
        """What the shard holds of each group of parameters: memory, with nothing in it yet.

        Args:
            plan: How the memory is kept.
            is_mapped: Whether workers read versions where they are written.
        """
        cut = self.span
        numel = cut.stop - cut.start
        ring = mapped_ring(plan.folder, plan.capacity, self.layout.numel, cut) if is_mapped else own_ring(plan, numel)
        states = two_states(plan, self._optimizer().state_names, numel)
        pieces: dict[int, GroupSlice] = {}
        for group, span in parts(cut, [slice(*span) for span in self.layout.groups]).items():
            part = slice(span.start - cut.start, span.stop - cut.start)
            both = [{name: vector[part] for name, vector in state.items()} for state in states]
            journal = journal_of(plan, group, ring_is_read=is_mapped)
            pieces[group] = GroupSlice(span, Shard(self.config(span), [row[part] for row in ring], both, journal))
        return pieces

    def begin(self, pieces: Iterable[tuple[int, GroupSlice]], first: VersionPart | None, recovers: bool) -> None:
        """Fill all pieces with a first version.

        Args:
            pieces: By group.
            first: A version of this shard's slice.
            recovers: Whether another process served before this one: what it left in its memory goes before `first`.

        Raises:
            ShardLost: There is neither.
        """
        for group, piece in pieces:
            if recovers and (left := read_journal(piece.shard.journal)) is not None:
                piece.shard.restore(left)
            elif first is not None:
                self._fill(group, piece, first, recovers)
            else:
                lost = f"shard {self.index} has left nothing from which it could go on, and there is no snapshot"
                raise ShardLost(lost)

    def config(self, span: slice) -> ShardConfig:
        """How a part of the vector is updated."""
        spec, algorithm = self.spec, self.spec.algorithm
        update = SliceUpdate(self._optimizer().within(span), span.stop - span.start, torch.device("cpu"))
        quorum = algorithm.traits.quorum(spec.workers.num_virtual)
        schedule = rate_of_versions(spec, self.layout.num_examples)
        compressor = None if spec.compress is None else compressor_of(spec.compress)
        late = algorithm.traits.harmless_staleness
        return ShardConfig(update, schedule, quorum, algorithm.traits.num_backup, late, compressor)

    def _optimizer(self) -> Optimizer:
        """Of the flat vector."""
        layout = self.layout
        return build_optimizer(
            self.spec, layout.num_examples, layout.exempt, layout.parameter_groups, layout.parameters
        )

    def _fill(self, group: int, piece: GroupSlice, first: VersionPart, recovers: bool) -> None:
        shard, begin = piece.shard, self.span.start
        part = slice(piece.span.start - begin, piece.span.stop - begin)
        # What comes from Ray's object store is shared and must not be written: it is copied.
        params = torch.from_numpy(np.array(first.params[part]))
        state = {name: torch.from_numpy(np.array(vector[part])) for name, vector in first.state.items()}
        shard.applied = IdentitySet.from_json([list(row) for row in first.applied if row[1] == group])
        shard.examples, shard.learning_rate = first.examples, first.learning_rate
        shard.version = dict(first.versions).get(group, 0)
        shard.begin(params, state, recovers)
