"""The interface between a worker's training loop and the algorithms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from trainers.collectives.lossy.compressed import CompressedSum
from trainers.collectives.lossy.compressed_beside import CompressedSumBeside
from trainers.collectives.lossy.low_rank import LowRankSum
from trainers.collectives.messages import Lane
from trainers.collectives.protocol import Collectives
from trainers.data.batches import Batch, Skipped
from trainers.links.names import WireName
from trainers.models.objective import Total
from trainers.models.replica import Replica
from trainers.optim.buffers import Buffers
from trainers.optim.compress.build import compressor_of
from trainers.optim.compress.config import CompressSpec
from trainers.optim.compress.feedback import ErrorFeedback
from trainers.optim.compress.low_rank import low_rank_of
from trainers.optim.loss_scale import FIRST_SCALE, LossScale
from trainers.optim.noise_scale import NoiseEstimate
from trainers.optim.optimizer import Optimizer
from trainers.optim.schedules import Schedule
from trainers.parameter_server.protocol import ParameterStore


@dataclass(frozen=True)
class Minibatch:
    """The examples that one virtual worker trains in one step."""

    index: int
    """Number of the minibatch in the epoch: it holds examples index * n to (index + 1) * n of the permutation."""
    virtual_rank: int
    batch: Batch | None
    """None if the epoch has no examples left for this virtual worker, which then contributes nothing to the step."""


@dataclass(frozen=True)
class Work:
    """What one worker does in one step."""

    epoch: int
    minibatches: tuple[Minibatch, ...]
    total_examples: int
    """Examples whose gradients make one update: kn, those of all workers, for a synchronous algorithm; those of the
    worker or of its group for an asynchronous one."""
    ends_lease: bool = False
    """Whether the accumulated gradient must be pushed after this step: the next minibatches belong to another lease and
    do not adjoin these, and a push covers one contiguous range."""
    group_minibatches: int = 1
    """Minibatches that the worker's group computes in the step; they adjoin each other, the first worker's first."""
    ends_epoch: bool = False
    """Whether this is the last step of an epoch. Set for synchronous algorithms only."""
    sizes: tuple[int, ...] = ()
    """Examples in the minibatch of each virtual worker, by virtual rank. Set for synchronous algorithms only."""

    @property
    def examples(self) -> int:
        """Examples that this worker trains in this step."""
        return sum(m.batch.num_used for m in self.minibatches if m.batch is not None)

    @property
    def skipped(self) -> list[Skipped]:
        """Of these, those that could not be read."""
        return [found for m in self.minibatches if m.batch is not None for found in m.batch.skipped]


@dataclass(frozen=True)
class StepReport:
    """The result of one step on one worker."""

    total: Total
    """The loss summed over the worker's examples, with their weight."""
    examples: int
    learning_rate: float
    is_apart: bool = False
    """Whether the worker, or its group, was cut off from the shards."""
    dropped: int = 0
    """Minibatches whose gradients came too late and were discarded: their examples still have to be trained."""
    delays: tuple[int, ...] = ()
    """For each group of layers, how many minibatches its backward pass is behind its forward pass. Empty unless
    back-propagation is asynchronous."""
    norms: tuple[float, ...] = ()
    """The norms of the gradients of this worker's updates, or pushes, before they were clipped (`clip.norm`)."""
    loss_scale: LossScale = FIRST_SCALE
    """That of the next step (`precision: float16`)."""
    noise: NoiseEstimate | None = None
    """What the step tells of the gradient noise scale, where one worker measures it for all."""


@dataclass
class Start:
    """The state in which a run starts or resumes."""

    buffers: Buffers
    """Parameters and optimizer state, (P,) each, on the CPU."""
    examples: int = 0
    """Examples trained so far."""
    learning_rate: float = 0.0
    """Learning rate of the last update; 0 if there was none."""
    loss_scale: LossScale = FIRST_SCALE
    """That of the first step (`precision: float16`)."""

    def let_go(self) -> None:
        """Keep the vectors no longer: the algorithm has begun, with vectors of its own."""
        self.buffers = Buffers(self.buffers.params.new_empty(0), {})


@dataclass(frozen=True)
class Context:
    """What an algorithm works with on one worker.

    It has collectives, a store or both, as the traits of the algorithm ask for. Within a group only the first worker
    has a store.
    """

    replica: Replica
    optimizer: Optimizer
    """Of the flat vector."""
    schedule: Schedule
    num_virtual: int
    start: Start
    partition_sizes: tuple[int, ...] = ()
    """Examples that each virtual worker trains in an epoch, by virtual rank."""
    collectives: Collectives | None = None
    store: ParameterStore | None = None
    inputs: tuple[int, ...] = ()
    """Shape of one example's inputs."""
    per_worker: int = 0
    """n: examples in the minibatch of a virtual worker; the last minibatches of an epoch may have fewer."""
    wire: WireName = "float32"
    """To what each virtual worker's gradient, or each push, is rounded, and as what it travels."""
    compress: CompressSpec | None = None
    """What of each virtual worker's gradient, or of each push, travels; None: all of it."""
    seed: int = 0
    """Of the run."""
    groups: tuple[slice, ...] = ()
    """The spans of the flat vector that are pushed and fetched separately (`AlgorithmConfig.parameter_groups`)."""

    def feedback(self) -> ErrorFeedback | None:
        """The memory of one worker that has sent nothing yet, where what it sends is compressed."""
        if self.compress is None:
            return None
        kept = torch.zeros(self.replica.layout.numel)
        return ErrorFeedback(compressor_of(self.compress), kept, self.replica.layout.gaps)

    def compressed_sum(self) -> CompressedSum | LowRankSum | None:
        """The sum over all virtual workers of what each of them sends, where that is compressed."""
        if self.compress is None:
            return None
        assert self.collectives is not None
        layout, among, start = self.replica.layout, (self.collectives, self.num_virtual), self.start.buffers.state
        if self.compress.powersgd is None:
            return CompressedSum(*among, compressor_of(self.compress), layout.gaps, start)
        low_rank = low_rank_of(zip(layout.offsets, layout.shapes, strict=True), self.compress.powersgd)
        return LowRankSum(*among, low_rank, layout.numel, self.seed, start)

    def compressed_beside(self, lane: Lane) -> CompressedSumBeside | None:
        """The same of one part of the vectors after the other, on a lane."""
        if self.compress is None:
            return None
        assert self.collectives is not None
        gaps, start = self.replica.layout.gaps, self.start.buffers.state
        compressor = compressor_of(self.compress)
        return CompressedSumBeside(self.collectives, self.num_virtual, compressor, gaps, start, lane)


class Algorithm(ABC):
    """One worker's side of a parallel SGD."""

    @abstractmethod
    def step(self, work: Work) -> StepReport:
        """Train one step."""

    def gather_state(self) -> Buffers | None:
        """Parameters and optimizer state, (P,) each, gathered from all workers; None where the shards hold them.

        Collective: every worker of the run calls it.
        """
        return None

    def local_state(self, lag: int = 0) -> Buffers | None:
        """Parameters and optimizer state, (P,) each, after the last completed step, or `lag` (0 or 1) steps before it.

        Needs no communication, so it also works while other workers are dead. None where this worker's memory does
        not hold all of it, or where the shards do.
        """
        return None

    @abstractmethod
    def finish(self) -> None:
        """Leave the group, or the store, once the last step is done."""


def oldest_clock(clock: int, max_staleness: int | None) -> int:
    """The clock that the slowest worker must have reached before a worker at `clock` may fetch; 0: any (Ho et al.
    2013).

    max_staleness: how far the slowest worker may be behind; None: any number.
    """
    return 0 if max_staleness is None else max(0, clock - max_staleness)
