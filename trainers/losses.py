"""The losses that a spec can name, as sums over examples, whole or from shards of the classes."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.spec import LossName


def sum_of_losses(loss: LossName, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of logits (B, classes) under labels (B,) int64, summed over the examples; ().

    `logistic` (paper 1, section 5): each class is an independent logistic unit whose target is whether the example is
    of that class; the cross entropies of all units are added.
    """
    if loss == "cross_entropy":
        return F.cross_entropy(logits, labels, reduction="sum")
    targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")


Tell = Callable[[Tensor], Tensor]
"""Exchanges a few figures an example, (f, B), among the shards of the classes: (shards, f, B)."""


def loss_of_shard(loss: LossName, logits: Tensor, labels: Tensor, first: int, tell: Tell) -> tuple[Tensor, Tensor]:
    """The loss from a shard of the classes: `logits` (B, w) are those of the classes from `first` on; `labels` (B,).

    Returns losses (B,) and the gradient of their sum with respect to `logits`, (B, w). The losses are the examples'
    own for `cross_entropy`, and for `logistic`, which exchanges nothing, what this shard's units add to them.
    """
    inside = (labels >= first) & (labels < first + logits.shape[1])
    column = (labels - first).clamp_(0, logits.shape[1] - 1)[:, None]
    hit = inside.to(logits.dtype)[:, None]
    if loss == "logistic":
        targets = torch.zeros_like(logits).scatter_(1, column, hit)
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1)
        return losses, torch.sigmoid(logits).sub_(targets)
    highest = logits.amax(1)
    powers = logits.sub(highest[:, None]).exp_()
    own = logits.gather(1, column)[:, 0].where(inside, logits.new_zeros(()))
    maxima, sums, targets = tell(torch.stack([highest, powers.sum(1), own])).unbind(1)  # (shards, B) each
    top = maxima.amax(0)
    total = (maxima - top).exp_().mul_(sums).sum(0)
    losses = total.log().add_(top).sub_(targets.sum(0))
    softmax = powers.mul_(((highest - top).exp_() / total)[:, None])
    return losses, softmax.scatter_add_(1, column, -hit)
