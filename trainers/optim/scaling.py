"""Scaling of learning rate and weight decay with the batch. Imports no torch.

k is the factor by which the batch of an update is larger than the base batch.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import ValidationInfo, field_validator

from trainers.section import Section


class ScalingSpec(Section):
    """How learning rate and weight decay follow the batch, by its factor k = batch of an update / `batch.base`.

    The batch of an update is the whole minibatch of all virtual workers for a synchronous algorithm, and one worker's
    minibatch for Downpour. Without `batch.base` nothing is scaled.
    """

    name: Literal["none", "sqrt", "linear"] = "none"
    """`linear`: lr k (paper 4, section 2.1); `sqrt`: lr sqrt(k) (paper 1, section 5); `none`: lr at any batch."""

    weight_decay: Literal["keep", "sqrt", "exact"] = "keep"
    """With `sqrt`: `exact` keeps the total decay an example, (1 - (1 - lr w)^k) / (sqrt(k) lr); `sqrt` is its limit
    sqrt(k) w (paper 1, section 5). `linear` always keeps w."""

    @field_validator("weight_decay")
    @classmethod
    def _only_with_sqrt(cls, weight_decay: str, info: ValidationInfo) -> str:
        name = info.data.get("name", "sqrt")
        if weight_decay != "keep" and name != "sqrt":
            raise ValueError(f"with scaling {name} the weight decay stays as it is; use keep, or scaling sqrt")
        return weight_decay


class Rates(Protocol):
    """An optimizer's section."""

    @property
    def lr(self) -> float:
        """The learning rate at the base batch."""

    @property
    def weight_decay(self) -> float:
        """The weight decay at the base batch."""


@dataclass(frozen=True)
class BatchScaling:
    """An optimizer's learning rate and weight decay, scaled from the base batch to the batch of this run."""

    optimizer: Rates
    rule: ScalingSpec
    update_batch: int
    """Examples per update of this run."""
    base_batch: int | None
    """Examples per update to which the optimizer's learning rate and weight decay belong; None: those of this run."""

    @property
    def batch_factor(self) -> float:
        """k; 1 where there is no base batch."""
        return 1.0 if self.base_batch is None else self.update_batch / self.base_batch

    @property
    def rate_factor(self) -> float:
        """The factor of the learning rate: k (paper 4, section 2.1), sqrt(k) (paper 1, section 5) or 1."""
        k = self.batch_factor
        return {"none": 1.0, "sqrt": math.sqrt(k), "linear": k}[self.rule.name]

    @property
    def learning_rate(self) -> float:
        """The learning rate at the batch of this run, before any schedule."""
        return self.optimizer.lr * self.rate_factor

    @property
    def weight_decay(self) -> float:
        """The weight decay at the batch of this run."""
        w, k = self.optimizer.weight_decay, self.batch_factor
        if self.rule.weight_decay == "keep" or self.base_batch is None:
            return w
        return exact_decay(w, self.optimizer.lr, k) if self.rule.weight_decay == "exact" else math.sqrt(k) * w


def exact_decay(w: float, e: float, k: float) -> float:
    """w' with 1 - sqrt(k) e w' = (1 - e w)^k: one update decays as much as k updates at the base batch (paper 1,
    section 5).

    w, e: weight decay and learning rate at the base batch.
    """
    return -math.expm1(k * math.log1p(-e * w)) / (math.sqrt(k) * e)


def momentum_correction(before: float, lr: float) -> float:
    """The factor by which v of paper 4's equation 10 must be multiplied when the learning rate changes to `lr`.

    before: the last learning rate; 0 before the first update. After a rate of 0, v is 0 too, and the factor is 1.
    """
    return lr / before if before else 1.0
