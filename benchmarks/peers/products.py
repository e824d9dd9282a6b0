"""Millrace's matrix products in a model of the peers', so that the ways to be parallel are compared by themselves."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models.products import input_gradient, outputs, weight_gradient


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = upstream
        x, weight = ctx.saved_tensors
        dw = torch.empty_like(weight)
        weight_gradient(dy, x, dw)
        return input_gradient(dy, weight), dw, dy.sum(0)


def _forward(module: nn.Linear, x: Tensor) -> Tensor:
    return _Linear.apply(x, module.weight, module.bias)  # type: ignore[no-untyped-call, no-any-return]


def with_our_products(model: nn.Module) -> nn.Module:
    """The same model, whose fully connected layers multiply as Millrace's workers do."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
    return model
