"""The global order of examples: which of them belong to minibatch i of epoch e is a pure function of the seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trainers.data.draws import permutation


@dataclass(frozen=True)
class Extent:
    """How much of the order a run trains."""

    epochs: int
    """Whole ones."""
    minibatches: int
    """Of the epoch after these; 0 where the run ends with an epoch."""
    examples: int
    """In all."""


@dataclass
class Order:
    """One random permutation per epoch, divided among all workers (paper 4, remark 4), or the order of the data.

    Minibatch i of an epoch holds elements i n to (i + 1) n of its permutation; the last may be smaller. In step s of
    a synchronous run virtual worker v computes minibatch s V + v.
    """

    num_examples: int
    per_worker: int
    num_virtual: int
    seed: int
    shuffle: bool = True
    """False: every epoch has the examples in the order of the data."""
    _permutations: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @property
    def minibatches(self) -> int:
        """Minibatches per epoch."""
        return -(-self.num_examples // self.per_worker)

    @property
    def steps(self) -> int:
        """Synchronous steps per epoch."""
        return -(-self.minibatches // self.num_virtual)

    def size(self, index: int) -> int:
        """Examples in minibatch `index`; 0 beyond the end of the epoch."""
        return max(0, min(self.per_worker, self.num_examples - index * self.per_worker))

    def step_size(self, step: int) -> int:
        """Examples in all minibatches of a synchronous step, kn."""
        return max(0, min(self.per_worker * self.num_virtual, self.num_examples - step * self._per_step))

    def examples(self, epoch: int, index: int) -> NDArray[np.int64]:
        """The examples of a minibatch, (size(index),) int64."""
        permuted = self._permutations.get(epoch)
        if permuted is None:
            self._permutations = {e: p for e, p in self._permutations.items() if e >= epoch - 1}
            permuted = self._permutations[epoch] = self._permuted(epoch)
        return permuted[index * self.per_worker : (index + 1) * self.per_worker]

    def extent(self, epochs: int, per_step: int, max_steps: int | None, max_examples: int | None) -> Extent:
        """How much is trained in so many epochs, steps or examples, whichever end first.

        per_step: Minibatches of a step. A step is not divided: the one that reaches `max_examples` is the last.
        """
        ends = epochs, 0
        if max_steps is not None:
            whole, steps = divmod(max_steps, -(-self.minibatches // per_step))
            ends = min(ends, (whole, steps * per_step))
        if max_examples is not None:
            whole, rest = divmod(max_examples, self.num_examples)
            minibatches = -(-rest // (self.per_worker * per_step)) * per_step
            ends = min(ends, (whole, minibatches) if minibatches < self.minibatches else (whole + 1, 0))
        examples = ends[0] * self.num_examples + min(ends[1] * self.per_worker, self.num_examples)
        return Extent(*ends, examples)

    def partition_size(self, virtual_rank: int) -> int:
        """Examples that a virtual worker trains in an epoch of a synchronous run."""
        return sum(self.size(step * self.num_virtual + virtual_rank) for step in range(self.steps))

    @property
    def partition_sizes(self) -> tuple[int, ...]:
        """`partition_size` of all virtual workers, by rank."""
        return tuple(self.partition_size(rank) for rank in range(self.num_virtual))

    def examples_of(self, virtual_rank: int, epoch: int) -> NDArray[np.int64]:
        """All examples that a virtual worker trains in an epoch, (partition_size(virtual_rank),) int64, in order."""
        indices = range(virtual_rank, max(self.minibatches, virtual_rank + 1), self.num_virtual)
        return np.concatenate([self.examples(epoch, index) for index in indices])

    def _permuted(self, epoch: int) -> NDArray[np.int64]:
        if not self.shuffle:
            return np.arange(self.num_examples, dtype=np.int64)
        return permutation(self.seed, epoch, self.num_examples)

    @property
    def _per_step(self) -> int:
        return self.per_worker * self.num_virtual


class Partitions(Order):
    """Every virtual worker keeps the examples that it has in the first epoch; each epoch's permutation orders them.

    Minibatches and steps are as large as in the global order.
    """

    def _permuted(self, epoch: int) -> NDArray[np.int64]:
        first, shuffled = super()._permuted(0), super()._permuted(epoch)
        rank_of_position = np.arange(self.num_examples) // self.per_worker % self.num_virtual
        rank_of_example = np.empty_like(rank_of_position)
        rank_of_example[first] = rank_of_position
        found = np.empty_like(shuffled)
        found[np.argsort(rank_of_position, kind="stable")] = shuffled[
            np.argsort(rank_of_example[shuffled], kind="stable")
        ]
        return found


@dataclass
class HeldOrder(Order):
    """Every virtual worker trains the examples that it holds, in the order of the epoch's permutation. Before `hold` is
    called it is the global order.

    Minibatches and steps are as large as in the global order.
    """

    _held: dict[int, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    _sorted: tuple[int, dict[int, NDArray[np.int64]]] = field(default=(-1, {}), repr=False)
    """An epoch, and the held examples of each virtual rank in its order."""

    def hold(self, held: Mapping[int, NDArray[np.int64]]) -> None:
        """Set the ids that the virtual workers of this process hold from now on, partition_size(rank) each."""
        assert all(len(ids) == self.partition_size(rank) for rank, ids in held.items())
        self._held, self._sorted = dict(held), (-1, {})

    def examples(self, epoch: int, index: int) -> NDArray[np.int64]:
        if not self._held:
            return super().examples(epoch, index)
        if self._sorted[0] != epoch:
            position = np.empty(self.num_examples, dtype=np.int64)
            position[self._permuted(epoch)] = np.arange(self.num_examples)
            self._sorted = epoch, {rank: ids[np.argsort(position[ids])] for rank, ids in self._held.items()}
        step, rank = divmod(index, self.num_virtual)
        return self._sorted[1][rank][step * self.per_worker : (step + 1) * self.per_worker]
