"""What a model is trained for: the loss of a minibatch, as a replica asks for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from trainers.data.batches import Data
from trainers.errors import UserCodeFailed

Model = Callable[..., Any]


class Loss:
    """What a minibatch costs under a model."""

    def __init__(self, total: Tensor, weight: float | Tensor) -> None:
        """
        Args:
            total: (), the sum of the loss over the units of the minibatch; autograd goes back from here.
            weight: How many units that is: examples, tokens that count, boxes. Of a tensor () on a GPU nobody waits for
                it before it is read.
        """
        self.total, self._weight = total, weight

    @property
    def weight(self) -> float:
        """How many units the total is of."""
        return float(self._weight)

    def of(self, total: Tensor) -> Loss:
        """The same with another total."""
        return Loss(total, self._weight)


@dataclass(frozen=True)
class Total:
    """The same as two numbers, which add up over minibatches and workers."""

    loss: float | Tensor = 0.0
    """On a GPU, which may not have computed it yet, a tensor ()."""
    weight: float = 0.0

    @classmethod
    def of(cls, loss: Loss) -> Total:
        """A weight becomes a multiple of 2**-16: sums of such are exact, so that their order does not matter."""
        total = loss.total.detach()
        return cls(float(total) if total.device.type == "cpu" else total, round(loss.weight * 2**16) / 2**16)

    def __add__(self, other: Total) -> Total:
        return Total(self.loss + other.loss, self.weight + other.weight)


def shape_of(outputs: Any) -> tuple[int, ...] | str:
    """Of what a model gives, as an error says it; of what is no tensor, the name of its class."""
    return tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__


class Objective(ABC):
    """The loss of a minibatch. An update divides the sum of gradients once by the weight of the whole minibatch, over
    all virtual workers, so that it is exact where minibatches weigh differently."""

    is_traceable: ClassVar[bool] = False
    """Whether `loss` computes with tensors only and changes nothing, so that it can be compiled with the model: then
    logits need not be written to memory and read again."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Of another loss nobody knows whether it can be traced, or what it weighs, unless it says so itself."""
        super().__init_subclass__(**options)
        if vars(cls).keys() & {"loss", "loss_of"}:
            for name in {"is_traceable", "weigh"} - vars(cls).keys():
                setattr(cls, name, vars(Objective)[name])

    @property
    def weight_per_example(self) -> float | None:
        """What each example weighs, if all weigh the same: then workers need not tell each other. None: `loss` says."""
        return None

    def weigh(self, data: Data) -> float | None:
        """What a minibatch weighs, if that is seen without the model; asked before it goes to a GPU, which nobody then
        waits for. None: `loss` says."""
        return None

    @abstractmethod
    def loss(self, model: Model, data: Data) -> Loss:
        """The loss of a minibatch, summed over its units."""


def loss_of(objective: Objective, model: Model, data: Data) -> Loss:
    """What `loss` of an objective gives. Raises UserCodeFailed where that is anything else than one sum."""
    found: Any = objective.loss(model, data)
    if isinstance(found, Loss) and isinstance(found.total, Tensor) and found.total.numel() == 1:
        return found
    what = f"a Loss with a total of {shape_of(found.total)}" if isinstance(found, Loss) else f"a {type(found).__name__}"
    raise UserCodeFailed(
        f"loss of {type(objective).__name__} gives {what}; it must give Loss(total, weight): the sum of the loss over "
        "the minibatch's examples, not their mean, and how many they are"
    )


class Supervised(Objective):
    """An objective that sees nothing of a model but its output for the inputs."""

    def inputs(self, data: Data) -> Tensor:
        """What the model is called with."""
        inputs: Tensor = data[0]
        return inputs

    @abstractmethod
    def loss_of(self, outputs: Any, data: Data) -> Loss:
        """The loss of what the model made of a minibatch's inputs."""

    def loss(self, model: Model, data: Data) -> Loss:
        return self.loss_of(model(self.inputs(data)), data)
