"""The recipe's part of a spec: update rule, learning rate and how it scales with the batch, warm-up, schedule.

What the fields mean together is worked out in `trainers/optim/`; `millrace explain` prints it.
"""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.spec_base import Section

Exempt = Literal["batch_norm", "biases"]


class OptimizerSpec(Section):
    """What all update rules share."""

    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss: g <- g + weight_decay w, once after the reduction."""

    no_decay: tuple[Exempt, ...] = ("batch_norm",)
    """Parameters without weight decay: gamma and beta of batch normalisation (paper 4, section 5.1), and all biases on
    request. An empty list: none."""


class SgdSpec(OptimizerSpec):
    """w <- w - lr g."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""


class MomentumSpec(OptimizerSpec):
    """u <- momentum u + g, w <- w - lr u (paper 4, equation 9); or equation 10."""

    name: Literal["momentum"] = "momentum"
    lr: float = Field(default=0.02, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""
    equation: Literal[9, 10] = 9
    """Of paper 4, section 3. 10 absorbs the rate: v <- momentum v + lr g, w <- w - v."""
    momentum_correction: bool = True
    """In equation 10: multiply v by the new rate over the old one whenever the rate changes, which keeps it equal to
    equation 9 (paper 4, remark 2). Paper 1 had none."""


class NesterovSpec(OptimizerSpec):
    """u <- momentum u + g, w <- w - lr (g + momentum u)."""

    name: Literal["nesterov"] = "nesterov"
    lr: float = Field(default=0.05, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""


class RmspropSpec(OptimizerSpec):
    """s <- decay s + (1 - decay) g^2, w <- w - lr g / (sqrt(s) + epsilon), PyTorch's form; or TensorFlow's."""

    name: Literal["rmsprop"] = "rmsprop"
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the mean square that is kept."""
    epsilon: float = Field(default=1e-8, gt=0, le=10)
    """Added to the root, in TensorFlow's form inside it."""
    form: Literal["pytorch", "tensorflow"] = "pytorch"
    """`tensorflow`: w <- w - lr g / sqrt(s + epsilon) with s = 1 at the start, as paper 3 trained (section IV)."""


class AdagradSpec(OptimizerSpec):
    """s <- s + g^2, w <- w - lr g / (sqrt(s) + epsilon) (Duchi et al. 2011; on the server in Dean et al. 2012)."""

    name: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.01, gt=0, le=1000)
    """Learning rate, at the base batch where `batch.base` gives one."""
    epsilon: float = Field(default=1e-10, gt=0, le=10)
    """Added to the root."""


AnyOptimizer = Annotated[SgdSpec | MomentumSpec | NesterovSpec | RmspropSpec | AdagradSpec, Field(discriminator="name")]


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


class WarmupSpec(Section):
    """The first epochs at a lower rate (paper 4, section 2.2). Without a higher rate to go to it does nothing."""

    name: Literal["none", "constant", "gradual"] = "none"
    """`constant`: the base rate `optimizer.lr` throughout, then a jump; `gradual`: from the base rate by a constant
    increment an iteration to the scaled one."""

    epochs: float = Field(default=5, gt=0, le=1_000_000)
    """How long. The schedule counts its epochs from the start of the run all the same."""


class ConstantSchedule(Section):
    """The learning rate stays what it is."""

    name: Literal["constant"] = "constant"


class StepSchedule(Section):
    """The learning rate is multiplied by `factor` at the end of each of the given epochs (paper 4, section 5.1)."""

    name: Literal["step"] = "step"
    epochs: tuple[float, ...] = (30, 60, 80)
    """When, in epochs from the start."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """By how much."""


class KrizhevskySchedule(Section):
    """The learning rate is multiplied by 250^(-1/3) at 25, 50 and 75 % of the run (paper 1, section 5)."""

    name: Literal["krizhevsky"] = "krizhevsky"


class CosineSchedule(Section):
    """Half a cosine from the learning rate down to `final` times it over the run."""

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""


class PolynomialSchedule(Section):
    """(1 - share of the run)^power, from the learning rate down to `final` times it."""

    name: Literal["polynomial"] = "polynomial"
    power: float = Field(default=2.0, gt=0, le=100)
    """1: a straight line; 2 as in You et al. 2017."""
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""


AnySchedule = Annotated[
    ConstantSchedule | StepSchedule | KrizhevskySchedule | CosineSchedule | PolynomialSchedule,
    Field(discriminator="name"),
]
