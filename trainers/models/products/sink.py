"""Where the gradients of a backward pass are written, and fully connected layers that write theirs there at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.models.products.multiply import Products


@dataclass
class Sink:
    """Where the gradients of the current backward pass are written."""

    views: dict[int, Tensor]
    """id of a parameter -> its view of the caller's flat gradient vector."""
    written: set[int]
    on_ready: Callable[[str], None] | None = None

    def add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Write a gradient that autograd computed; the gradients of a parameter that is used twice are added."""
        view = self.views[id(parameter)]
        if id(parameter) in self.written:
            view.add_(gradient)
        else:
            view.copy_(gradient)
        self.written.add(id(parameter))


class Trained(Protocol):
    """Whoever trains a layer: a replica."""

    @property
    def sink(self) -> Sink:
        """Where its gradients go."""

    @property
    def products(self) -> Products:
        """How it multiplies."""


class LinearIntoSink(torch.autograd.Function):
    """A fully connected layer whose backward pass writes its product directly into the flat gradient vector.

    Autograd would allocate the product and copy it: for a layer of 3 M parameters, 12 MB written and read again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, trained: Trained) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameters, ctx.trained = (weight, bias), trained
        return trained.products.outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = upstream  # (..., outputs)
        x, weight = ctx.saved_tensors
        sink, products, (parameter, bias) = ctx.trained.sink, ctx.trained.products, ctx.parameters
        rows, inputs = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        if ctx.needs_input_grad[1]:
            products.weight_gradient(rows, inputs, sink.views[id(parameter)], add=id(parameter) in sink.written)
            sink.written.add(id(parameter))
        if ctx.needs_input_grad[2]:
            sink.add(bias, rows.sum(0))
        dx = products.input_gradient(rows, weight).view_as(x) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


def into_sink(trained: Trained) -> Callable[[nn.Linear, Tensor], Tensor]:
    """The `forward` of layers that are trained so, where torch itself is not as good."""

    def forward(module: nn.Linear, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return trained.products.outputs(x, module.weight, module.bias)
        if trained.products.leaves_to_torch(x, module.weight):
            return F.linear(x, module.weight, module.bias)
        return LinearIntoSink.apply(x, module.weight, module.bias, trained)  # type: ignore[no-any-return]

    return forward
