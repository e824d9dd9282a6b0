"""Batch norm whose minibatch lies on several workers, each of which has some rows of every example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.collectives.protocol import Collectives
from trainers.spans import span


class RowNorm(torch.autograd.Function):
    """Ioffe and Szegedy 2015, with the sums over a channel added up over the workers, in the order of their ranks.

    x (N, C, h, W) to y of the same shape, and the channel's mean and biased variance (C,) over all rows.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, count: int,
        collectives: Collectives,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """count: Elements of a channel on all workers."""
        mean = _added(x.sum((0, 2, 3)), collectives) / count
        variance = _added((x - _each(mean)).square_().sum((0, 2, 3)), collectives) / count
        ctx.save_for_backward(x, weight, mean, (variance + eps).rsqrt())
        ctx.count, ctx.collectives = count, collectives
        ctx.mark_non_differentiable(mean, variance)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps), mean, variance

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        dy = upstream[0]
        x, weight, mean, inverse = ctx.saved_tensors
        normalised = (x - _each(mean)).mul_(_each(inverse))
        own = torch.stack([dy.sum((0, 2, 3)), (dy * normalised).sum((0, 2, 3))])  # those of bias and weight
        dx = None
        if ctx.needs_input_grad[0]:
            of_mean, of_variance = _added(own.view(-1), ctx.collectives).view(2, -1) / ctx.count
            factor = inverse if weight is None else inverse * weight
            dx = normalised.mul_(_each(of_variance)).add_(_each(of_mean)).sub_(dy).mul_(_each(-factor))
        of_weight = own[1] if ctx.needs_input_grad[1] else None
        return dx, of_weight, own[0] if ctx.needs_input_grad[2] else None, None, None, None


def normalise(norm: nn.BatchNorm2d, x: Tensor, count: int, collectives: Collectives, updates: bool) -> Tensor:
    """What a batch norm in training makes of a worker's rows (N, C, h, W).

    Args:
        count: Elements of a channel on all workers.
        updates: Whether the running statistics are updated: those of the virtual worker whose minibatch it is.
    """
    y, mean, variance = RowNorm.apply(x, norm.weight, norm.bias, norm.eps, count, collectives)
    if updates and norm.running_mean is not None and norm.running_var is not None:
        with torch.no_grad():
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked += 1
            factor = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean, factor)
            norm.running_var.lerp_(variance * (count / max(1, count - 1)), factor)
    found: Tensor = y
    return found


def _added(vector: Tensor, collectives: Collectives) -> Tensor:
    """The sum over the workers."""
    on_device = vector.to(collectives.device, copy=True)
    with span("exchange"):
        collectives.all_reduce_sum(on_device).wait()
    return on_device.to(vector.device)


def _each(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)
