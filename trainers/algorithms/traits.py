"""What the rest of the system must know about an algorithm, as one value. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from trainers.optim.late.config import LateSpec
from trainers.optim.outer.config import OuterSpec


@dataclass(frozen=True)
class Traits:
    """How a run of one algorithm, with its options as the spec sets them, has to be organised."""

    is_synchronous: bool
    """Whether the step number alone determines which examples a step trains, so that workers need no leases."""
    uses_parameter_server: bool
    """Whether the run starts parameter-server shards."""
    uses_collectives: bool
    """Whether the workers of a group exchange tensors among themselves."""
    num_push: int = 1
    """Minibatches whose gradients a worker accumulates into one push."""
    follows_paces: bool = False
    """Asynchronous: whether a worker that is slower than the fastest pushes after fewer minibatches."""
    num_backup: int = 0
    """b: backup workers. Each step drops the gradients of the b workers that finish last (Chen et al. 2016)."""
    harmless_staleness: int | None = None
    """Where the shards divide the learning rate of an update by its staleness (Zhang et al. 2016): the largest that
    still has the whole rate. None: they do not."""
    late: LateSpec | None = None
    """What else the shards make of gradients that were computed from older parameters."""
    outer: OuterSpec | None = None
    """By what rule the shards apply what workers changed, each by `optimizer`, on parameters of its own. None: workers
    push gradients, and `optimizer` is the shards'."""
    group: int | None = 1
    """Asynchronous: workers whose mean gradient makes one update; None where that is known with the nodes only."""
    apart_s: float = 0.0
    """Asynchronous: seconds for which a worker, or a group, that does not reach the shards goes on by itself."""
    steps_alone: bool = False
    """Synchronous: whether each virtual worker makes several updates of its own between two averages."""
    averaged_each_step: int = 1
    """Where they do: how many virtual workers average after each step all the same, so that it is one of them all."""
    own_replicas: bool = False
    """Whether each virtual worker has parameters and optimizer state of its own."""
    common_vectors: int = 0
    """Vectors as long as the parameters that a worker keeps beside those of its virtual workers and a gradient."""
    keeps_partitions: bool = False
    """Whether each virtual worker trains the same examples in every epoch."""
    holds_examples: bool = False
    """Whether a worker holds only the examples of its own virtual workers, which may move between epochs."""

    divides_examples: bool = False
    """Whether workers share out each example, so that a whole one may need more memory than any of them has."""

    objective: Literal["any", "supervised", "labels"] = "any"
    """Which losses it takes: any; one of what the model makes of the inputs; a plain loss of logits and labels."""

    divides_parameters: str = ""
    """Why nobody has all of a parameter where it is updated, and what to change; empty: somebody has."""

    hides_norm: str = ""
    """Why nobody knows the norm of an update's gradient before the update, and what to change; empty: somebody does."""

    hides_average: str = ""
    """Why no average over the updates would be one of what is evaluated, and what to change; empty: there is one."""

    computes_in_float32: str = ""
    """Why it computes in no other type, and what to change; empty: it computes in whichever."""

    sends_gradients: bool = False
    """Whether workers send gradients of minibatches, and their sums only where all are added, so that `wire` may say in
    which numbers: parameters and activations are not rounded, nor sums that others add to."""

    sends_whole: str = "nobody keeps what is not sent; take sync, diloco or downpour"
    """Why nothing of what a worker sends may be kept and added the next time (`compress`), and what to change; empty: a
    part may."""

    scales_loss: bool = False
    """Whether the loss may be multiplied by a scale, all workers know whether the summed gradient is finite, and a step
    is left out where it is not."""

    @property
    def can_start_with_fewer(self) -> bool:
        """Whether a run may start with fewer workers than the spec asks for, and let the rest join later."""
        return self.is_synchronous or not (self.uses_collectives or self.num_backup)

    @property
    def late_states(self) -> int:
        """Vectors that the shards keep for late gradients, beside the optimizer's."""
        return 0 if self.late is None else self.late.num_states

    def num_pushers(self, num_workers: int) -> int:
        """Asynchronous: those among so many workers that push by themselves, which are groups where workers form such.
        Where only the nodes decide that, as if each were one."""
        return max(1, num_workers // (self.group or 1))

    def quorum(self, num_virtual: int) -> int:
        """Minibatches whose mean makes one update, K; 0 if every push to the shards is an update of its own."""
        return num_virtual - self.num_backup if self.is_synchronous or self.num_backup else 0

    def minibatches_per_update(self, num_virtual: int) -> int:
        """Minibatches whose mean gradient makes one update of parameters, whoever's they are. Where only the nodes
        decide that, as if there were one."""
        if self.steps_alone:
            return self.averaged_each_step
        return self.quorum(num_virtual) or self.group or num_virtual
