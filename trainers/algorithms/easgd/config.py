"""The config of elastic averaging SGD, with momentum and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.traits import Traits
from trainers.optim.outer.config import OuterAverage

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

BETA = 0.9
"""What all workers together pull: the source takes alpha = 0.9 / p for p workers."""

DELTA = 0.99
"""The source's momentum."""


class EasgdConfig(AlgorithmConfig):
    """Each worker trains parameters of its own, and every tau steps an elastic force pulls these towards a common
    centre, and the centre towards them. The shards hold the centre, which is what is evaluated."""

    source: ClassVar[str] = "Zhang et al. 2015, algorithms 1 and 2"

    name: Literal["easgd", "eamsgd"] = "easgd"
    """The name of the algorithm in a spec: `easgd`, or `eamsgd` for the one with momentum."""

    tau: int = Field(default=10, ge=1, le=10_000)
    """Steps of a worker between two pulls."""

    alpha: float | None = Field(default=None, gt=0, lt=1)
    """Share of the distance to the centre by which a pull moves both; null: 0.9 / the workers with which the run
    begins."""

    momentum: float | None = Field(default=None, gt=0, lt=1)
    """Delta, of `eamsgd`: Nesterov's momentum of a worker's own steps; null: 0.99."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many pulls the slowest worker may be behind one that fetches the centre; null: any number."""

    @field_validator("momentum")
    @classmethod
    def _is_taken(cls, momentum: float | None, info: ValidationInfo) -> float | None:
        if momentum is not None and info.data.get("name") == "easgd":
            raise ValueError("easgd has no momentum; take algorithm: eamsgd, or leave it out")
        return momentum

    @property
    def delta(self) -> float:
        """The momentum as it is taken; 0: none."""
        return 0.0 if self.name == "easgd" else (self.momentum or DELTA)

    def alpha_of(self, num_workers: int) -> float:
        """Alpha as it is taken."""
        return BETA / num_workers if self.alpha is None else self.alpha

    def formula(self, num_workers: int) -> str:
        """What a worker does, for `explain`."""
        step = "x <- x - rate g(x)"
        if self.delta:
            step = f"v <- {self.delta:g} v - rate g(x + {self.delta:g} v), x <- x + v"
        e = f"e = {self.alpha_of(num_workers):g} (x - centre)"
        return f"{step}; every {self.tau} steps {e}, x <- x - e, centre <- centre + e"

    @property
    def usual_optimizer(self) -> str:
        return "sgd"

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=False,
            uses_parameter_server=True,
            uses_collectives=False,
            num_push=self.tau,
            outer=OuterAverage(),
            common_vectors=3 + (self.delta > 0),
            sends_gradients=True,
            sends_whole=(
                "worker and centre move by the same difference, which must arrive whole; take downpour, or diloco"
            ),
        )

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.easgd.step import Easgd

        return Easgd(self, context)
