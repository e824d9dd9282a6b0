"""The config of ADMM."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig, names_of_ranks
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

Z = "consensus-z"
"""The vector that all workers are drawn to, between two updates of it."""

RHO = 0.1
"""rho, if the spec gives none."""

STEPS = 10
"""H, if the spec gives none."""


NOT_UPDATED = (
    "consensus evaluates z, which no update makes: it is an average of the workers' parameters already; use form: "
    "averaging, or another algorithm"
)


class AdmmConfig(AlgorithmConfig):
    """Workers update parameters of their own and average them: every minibatch, or as consensus ADMM."""

    source: ClassVar[str] = "paper 2 (5.1.2, algorithm 3), Boyd et al. 2011 (7.1)"

    name: Literal["admm"] = "admm"
    """The name of the algorithm in a spec."""

    form: Literal["averaging", "consensus"] = "averaging"
    """`averaging`: paper 2's algorithm 3, one SGD step a worker, then the average of all parameters, every minibatch;
    it has no rho, z or u. `consensus`: the alternating direction method of multipliers, each worker on a part of the
    examples that it keeps for the whole run."""

    rho: float | None = Field(default=None, gt=0, le=1000)
    """Consensus: the weight of the penalty (rho/2) ||x - z + u||^2 that draws the workers together; null: 0.1.
    The learning rate times rho must stay well below 1."""

    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    """Consensus: minibatches H in an x-update, between two updates of z and u, which are also made at the end of each
    epoch; null: 10."""

    @field_validator("rho", "steps")
    @classmethod
    def _is_consensus(cls, value: float | None, info: ValidationInfo) -> float | None:
        if info.data.get("form") == "averaging" and value is not None:
            raise ValueError(f"averaging has no {info.field_name}; leave it out, or set form to consensus")
        return value

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            steps_alone=self.form == "consensus" and self.steps != 1,
            keeps_partitions=self.form == "consensus",
            own_replicas=self.form == "consensus",
            hides_average="" if self.form == "averaging" else NOT_UPDATED,
            sends_whole="the next step needs the mean itself; take diloco with a small average_every, or sync",
        )

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        if self.form == "averaging":
            return ()
        return (Z, *names_of_ranks(agent_names(rule), num_virtual))

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.admm.step import AveragingAdmm, ConsensusAdmm

        return AveragingAdmm(context) if self.form == "averaging" else ConsensusAdmm(self, context)


def agent_names(rule: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the vectors that each virtual worker has in consensus ADMM."""
    return ("x", "u", *rule)
