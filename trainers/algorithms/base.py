"""What every algorithm shares: its config's root, what it is given, and what it must do.

Imports no torch: the spec is read in processes that have none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from torch import nn

    from trainers.data.batches import Batch
    from trainers.data.partition import Partitioning
    from trainers.optim.rules import UpdateRule
    from trainers.optim.schedules import Schedule
    from trainers.optim.update import Buffers
    from trainers.replica import Replica
    from trainers.store.layout import Layout
    from trainers.transport.protocols import Collectives, ParameterStore


@dataclass(frozen=True)
class Minibatch:
    """One virtual worker's share of a step."""

    index: int
    """Its number in the epoch: examples index * n to (index + 1) * n of the epoch's permutation."""
    virtual_rank: int
    batch: Batch | None
    """None where the epoch ended before it: it contributes nothing."""


@dataclass(frozen=True)
class Work:
    """What one worker does in one step."""

    epoch: int
    minibatches: tuple[Minibatch, ...]
    whole: int
    """Examples in the minibatches of all workers together, kn; for an asynchronous worker its own, or its group's."""
    ends_lease: bool = False
    """Whether what has been accrued must be pushed now, because the next minibatches are not its neighbours."""
    together: int = 1
    """Minibatches that this worker's group computes in the step, neighbours from its first worker's on."""
    ends_epoch: bool = False
    """Whether this is the last step of an epoch; for synchronous algorithms."""
    sizes: tuple[int, ...] = ()
    """Examples in the minibatch of each virtual worker; for synchronous algorithms."""

    @property
    def examples(self) -> int:
        """Examples that this worker trains in this step."""
        return sum(len(m.batch.examples) for m in self.minibatches if m.batch is not None)


@dataclass(frozen=True)
class StepReport:
    """What came of one step on one worker."""

    loss: float
    """Sum over its examples."""
    examples: int
    learning_rate: float
    dropped: int = 0
    """Minibatches whose gradients came too late and count for nothing: their examples are still to be trained."""
    delays: tuple[int, ...] = ()
    """Of each group of layers that goes backward later than forward: by how many minibatches. Empty where none does."""


@dataclass(frozen=True)
class Start:
    """Where a run begins: the first version of everything, and how far the training is."""

    whole: Buffers
    """Parameters and optimiser state, (P,) each, on the CPU."""
    examples: int = 0
    learning_rate: float = 0.0
    """Of the last update; 0 where there was none."""


@dataclass(frozen=True)
class Context:
    """What an algorithm works with on one worker. Collectives, a store or both, as its config asks for; of a group only
    the first worker has a store."""

    replica: Replica
    rule: UpdateRule
    weight_decay: float
    schedule: Schedule
    num_virtual: int
    start: Start
    shares: tuple[int, ...] = ()
    """Examples that each virtual worker computes in an epoch."""
    collectives: Collectives | None = None
    store: ParameterStore | None = None
    exempt: tuple[slice, ...] = ()
    """Parts of the flat vector without weight decay."""
    per_worker: int = 0
    """n: examples of a virtual worker's minibatch, but for the last ones of an epoch."""
    groups: tuple[slice, ...] = ()
    """The groups of parameters that are pushed and fetched by themselves, as `AlgorithmConfig.parameter_groups` has
    them."""


class Algorithm(Protocol):
    """One worker's side of a parallel SGD."""

    def step(self, work: Work) -> StepReport:
        """Train one step."""
        ...

    def whole(self) -> Buffers | None:
        """Parameters and state, (P,) each, gathered from all workers; None where the shards hold them. All call it."""
        ...

    def newest(self, before: int = 0) -> Buffers | None:
        """The version after the last step that was finished here, or the one `before` (0 or 1), whole, without a word
        to the others, of whom some may be dead; None where that takes them, or where the shards hold it."""
        ...

    def finish(self) -> None:
        """Say good-bye to the others once the last step is done."""
        ...


class AlgorithmConfig(BaseModel, ABC):
    """Root of the configs in this folder; the field `name` of each tells them apart in a spec."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)

    name: str
    """The word that stands for the algorithm in a spec."""

    source: ClassVar[str] = ""
    """Paper and section."""

    @property
    @abstractmethod
    def uses_parameter_server(self) -> bool:
        """Whether a run of this algorithm starts shards."""

    @property
    @abstractmethod
    def is_synchronous(self) -> bool:
        """Whether which examples a step trains follows from its number, so that no lease is needed."""

    @property
    def uses_collectives(self) -> bool:
        """Whether the workers of a group exchange tensors among themselves."""
        return not self.uses_parameter_server

    @property
    def num_backup(self) -> int:
        """Workers whose gradients a step goes without: those that come last are dropped."""
        return 0

    @property
    def takes_fewer(self) -> bool:
        """Whether a run may begin with fewer workers than it asks for: the rest find their places later."""
        return self.is_synchronous or not (self.uses_collectives or self.num_backup)

    def quorum(self, num_virtual: int) -> int:
        """Minibatches whose mean makes an update; 0: every push to the shards is an update of its own."""
        return num_virtual if self.is_synchronous else 0

    def groups(self, nodes: Sequence[str]) -> list[list[int]]:
        """The workers, by rank, that go on step by step together; `nodes`: where each of them is."""
        ranks = list(range(len(nodes)))
        return [ranks] if self.is_synchronous else [[rank] for rank in ranks]

    def parameter_groups(self, model: nn.Module, layout: Layout) -> tuple[slice, ...]:
        """How the flat vector is divided into groups of parameters that are pushed and fetched by themselves; none: it
        is one. Built alike in every process.

        Raises:
            ValueError: The model does not allow what a field asks for; which field, and what would work.
        """
        return ()

    @property
    def divides_by_staleness(self) -> bool:
        """Whether the shards divide an update's learning rate by its staleness."""
        return False

    def check_workers(self, num_workers: int) -> None:
        """Refuse a number of workers that a field does not go with.

        Raises:
            ValidationError: Of the field (`refused`), with what would work.
        """

    def check_model(self, model: nn.Module, num_workers: int) -> None:
        """Refuse a model that the algorithm cannot train, on so many workers.

        Raises:
            SpecRejected: With the field and what would work.
        """

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        """Refuse a number of virtual workers that a field does not go with.

        Raises:
            ValidationError: Of the field (`refused`), with what would work.
        """

    def refused(self, field: str, why: str) -> ValidationError:
        """The error of one of its fields that only the rest of the spec shows to be wrong."""
        kind = PydanticCustomError("value_error", "{why}", {"why": why})
        detail = InitErrorDetails(type=kind, loc=(field,), input=getattr(self, field))
        return ValidationError.from_exception_data(self.name, [detail])

    @property
    def keeps_partitions(self) -> bool:
        """Whether each virtual worker trains the same examples in every epoch."""
        return False

    @property
    def holds_examples(self) -> bool:
        """Whether a worker holds only the examples of its own virtual workers, which may move between epochs."""
        return False

    def partitioning(self, seed: int, shares: tuple[int, ...]) -> Partitioning:
        """How they are divided and move; `shares`: how many each virtual worker holds."""
        raise NotImplementedError(f"{self.name} has all examples at hand")

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        """Vectors (P,) of a version that only this algorithm knows, beside the parameters and the state that the
        update rule keeps under the names `rule`."""
        return ()

    @abstractmethod
    def build(self, context: Context) -> Algorithm:
        """The algorithm on one worker."""
