"""Millrace's matrix products in a model of the peers', so that the ways to be parallel are compared by themselves."""

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models.products.choice import LEAST_WEIGHTS
from trainers.models.products.measure import Shape, choose
from trainers.models.products.multiply import Products


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products, ctx.has_bias = products, bias is not None
        return products.outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = upstream
        x, weight = ctx.saved_tensors
        dw, rows = torch.empty_like(weight), dy.reshape(-1, dy.shape[-1])
        ctx.products.weight_gradient(rows, x.reshape(-1, x.shape[-1]), dw)
        dx = ctx.products.input_gradient(rows, weight).view_as(x)
        return dx, dw, rows.sum(0) if ctx.has_bias else None, None


def linear_shapes(model: nn.Module, inputs: Tensor) -> set[Shape]:
    """Of the fully connected layers that are large enough to be measured. inputs: of one minibatch."""
    shapes: set[Shape] = set()

    def see(module: nn.Module, args: tuple[Tensor, ...], _: Tensor) -> None:
        assert isinstance(module, nn.Linear)
        if module.weight.numel() >= LEAST_WEIGHTS:
            shapes.add((args[0].numel() // module.in_features, module.in_features, module.out_features))

    hooks = [module.register_forward_hook(see) for module in model.modules() if type(module) is nn.Linear]
    with torch.no_grad():
        model(inputs)
    for hook in hooks:
        hook.remove()
    return shapes


def with_our_products(model: nn.Module, inputs: Tensor) -> nn.Module:
    """The same model, whose fully connected layers multiply as Millrace's workers do. inputs: of one minibatch."""
    products = Products(choose(linear_shapes(model, inputs)))

    def forward(module: nn.Linear, x: Tensor) -> Tensor:
        return _Linear.apply(x, module.weight, module.bias, products)  # type: ignore[no-untyped-call, no-any-return]

    for module in (module for module in model.modules() if type(module) is nn.Linear):
        module.forward = MethodType(forward, module)  # type: ignore[method-assign]
    return model
