"""The config of DiLoCo."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig, names_of_ranks
from trainers.algorithms.traits import Traits
from trainers.documented import Documented

if TYPE_CHECKING:
    from torch import nn

    from trainers.algorithms.base import Algorithm, Context

START, VELOCITY = "outer-start", "outer-momentum"
"""Under which names a checkpoint has what the outer optimizer keeps, (P,) each."""

ARRIVING = "outer-arriving"
"""Likewise, the sums that are under way, each in the place of its fragment."""

ALPHA = 0.5
"""alpha, if the spec gives none and there is a delay."""

STREAMING = "Douillard et al. 2025 (algorithm 2)"
"""Where fragments, delay and alpha are from."""

NOT_UPDATED = (
    "diloco evaluates the outer parameters, which no worker's update makes; leave it out, or take parallel_sgd, which "
    "averages the workers' averages"
)


class Outer(Documented):
    """SGD on what a round changed: the mean of start minus end over all workers takes the place of a gradient."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    treats the mean of what they changed as a gradient, and all go on from what it makes of the parameters. Parts of the
    model may do so in turn, and sums may travel while all train on."""

    source: ClassVar[str] = "Douillard et al. 2023 (algorithm 1)"

    name: Literal["diloco"] = "diloco"
    """The name of the algorithm in a spec."""

    average_every: int = Field(default=500, ge=1, le=1_000_000)
    """Steps H of a round, which the end of an epoch ends too. `optimizer` is that of these steps."""

    outer: Outer = Outer()
    """The optimizer between two rounds."""

    fragments: int = Field(default=1, ge=1, le=10_000)
    """Parts P of the model, cut between parameters, whose rounds end in turn: one every H/P steps."""

    delay: int = Field(default=0, ge=0, le=1_000_000)
    """Steps for which the sum of a fragment may travel while all go on training; fewer than H."""

    alpha: float | None = Field(default=None, ge=0, lt=1)
    """Share of a worker's own parameters in those with which it goes on when a sum has come; the rest are the outer
    optimizer's. null: 0.5 with a delay, and 0 without one."""

    @field_validator("fragments")
    @classmethod
    def _have_a_turn_each(cls, fragments: int, info: ValidationInfo) -> int:
        every = info.data.get("average_every")
        if every is not None and fragments > every:
            raise ValueError(
                f"one fragment leaves after a step, and a round has {every}; give at most so many, or raise "
                "average_every"
            )
        return fragments

    @field_validator("delay")
    @classmethod
    def _ends_within_a_round(cls, delay: int, info: ValidationInfo) -> int:
        every = info.data.get("average_every")
        if every is not None and delay >= every:
            raise ValueError(
                f"a sum must be there before the next one of its fragment leaves, after {every} steps; give at most "
                f"{every - 1}, or raise average_every"
            )
        return delay

    @property
    def own_share(self) -> float:
        """alpha."""
        return self.alpha if self.alpha is not None else ALPHA if self.delay else 0.0

    @property
    def streams(self) -> bool:
        """Whether not simply all parameters are averaged at once and taken as they come."""
        return self.fragments > 1 or self.delay > 0 or self.own_share > 0

    @property
    def turns(self) -> str:
        """When parts of the model are averaged, and what is made of that, for `explain`."""
        num, every, share = self.fragments, self.average_every, self.own_share
        leaves = (
            f"one leaves every {every}/{num} steps, each every {every}" if num > 1 else f"leaves every {every} steps"
        )
        travels = f"its sum travels for {self.delay} step{'s' if self.delay > 1 else ''}"
        mixed = f"w_i <- {share:g} w_i + {1 - share:g} w" if share else "w_i <- w"
        return f"{leaves}; {travels if self.delay else 'its sum is waited for'}; then a worker's {mixed}"

    @property
    def usual_optimizer(self) -> str:
        return "adamw"  # as Douillard et al. have it

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            steps_alone=self.average_every != 1 or self.streams,
            own_replicas=True,
            common_vectors=2 if self.outer.momentum else 1,
            hides_average=NOT_UPDATED,
            sends_whole="",
        )

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        return (START, VELOCITY, ARRIVING, *names_of_ranks(("x", *rule), num_virtual))

    def check_model(self, model: nn.Module, num_workers: int) -> None:
        from trainers.errors import SpecRejected

        trained = sum(parameter.requires_grad for parameter in model.parameters())
        if self.fragments > trained:
            raise SpecRejected(
                f"algorithm.fragments: the model has {trained} parameters that are trained, none of which is divided; "
                "use at most so many fragments"
            )

    def resume_options(self) -> dict[str, object]:
        if not self.streams:
            return super().resume_options()
        turns = {"average_every": self.average_every, "fragments": self.fragments, "delay": self.delay}
        return super().resume_options() | turns  # which say what is under way

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.diloco.step import Diloco
        from trainers.algorithms.diloco.streaming import StreamingDiloco

        return StreamingDiloco(self, context) if self.streams else Diloco(self, context)
