"""The config of DiLoCo."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainers.algorithms.config import AlgorithmConfig, names_of_ranks
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

START, VELOCITY = "outer-start", "outer-momentum"
"""Under which names a checkpoint has what the outer optimizer keeps, (P,) each."""

NOT_UPDATED = (
    "diloco evaluates the outer parameters, which no worker's update makes; leave it out, or take parallel_sgd, which "
    "averages the workers' averages"
)


class Outer(BaseModel):
    """SGD on what a round changed: the mean of start minus end over all workers takes the place of a gradient."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    lr: float = Field(default=0.7, gt=0, le=100)
    """Its learning rate, the same throughout the run; at 1 without momentum the parameters become the workers' mean."""

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of its velocity that is kept from round to round."""

    nesterov: bool = True
    """Whether the momentum is Nesterov's; without momentum it is nothing."""

    @property
    def is_none(self) -> bool:
        """Whether the parameters simply become the workers' mean."""
        return self.lr == 1 and not self.momentum

    @property
    def formula(self) -> str:
        """What it does with the mean, for `explain`."""
        if self.is_none:
            return "w <- mean of the workers' w"
        start = "d = mean of what the workers changed, start minus end"
        if not self.momentum:
            return f"{start}; w <- w - {self.lr:g} d"
        step = f"d + {self.momentum:g} v" if self.nesterov else "v"
        return f"{start}; v <- {self.momentum:g} v + d; w <- w - {self.lr:g} ({step})"


class DilocoConfig(AlgorithmConfig):
    """Each worker makes many steps by itself, with an optimizer state that stays with it. Then an outer optimizer
    treats the mean of what they changed as a gradient, and all go on from what it makes of the parameters."""

    source: ClassVar[str] = "Douillard et al. 2023 (algorithm 1)"

    name: Literal["diloco"] = "diloco"
    """The name of the algorithm in a spec."""

    average_every: int = Field(default=500, ge=1, le=1_000_000)
    """Steps H of a round, which the end of an epoch ends too. `optimizer` is that of these steps."""

    outer: Outer = Outer()
    """The optimizer between two rounds."""

    @property
    def usual_optimizer(self) -> str:
        return "adamw"  # as Douillard et al. have it

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            steps_alone=self.average_every != 1,
            own_replicas=True,
            common_vectors=2 if self.outer.momentum else 1,
            hides_average=NOT_UPDATED,
            compresses=True,
        )

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        return (START, VELOCITY, *names_of_ranks(("x", *rule), num_virtual))

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.diloco.step import Diloco

        return Diloco(self, context)
