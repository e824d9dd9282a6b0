"""The losses that a spec can name, summed over examples, of all classes at once or of one worker's classes."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.data.batches import Data
from trainers.models.names import LossName
from trainers.models.objective import Loss, Supervised


class ClassWeights:
    """What each class weighs in a cross entropy, as `weight` of torch's, whose mean divides by the weights of all
    labels.

    They are kept times a power of two, which that division takes out again without a rounding: the sums of small ones
    would lose digits where a weight becomes a multiple of 2**-16.
    """

    def __init__(self, given: Sequence[float]) -> None:
        _, exponent = math.frexp(max(given))
        self._values = torch.tensor(given).ldexp(
            torch.tensor(8 - exponent)
        )  # (classes,) float32, the largest below 256

    def of(self, logits: Tensor) -> Tensor:
        """(classes,), in the type and on the device of the logits."""
        return self._values.to(logits)

    def sum_over(self, labels: Tensor) -> float:
        """Of labels of any shape, or of shares of the classes, (B, classes)."""
        values = self._values.to(labels.device, torch.float64)
        return float((labels.double() @ values if labels.is_floating_point() else values[labels]).sum())


class LabelLoss(Supervised):
    """A loss of logits (B, classes) with labels (B,) int64, or shares of the classes (B, classes), summed over the
    examples.

    label_smoothing: of `cross_entropy`, how much of the target is divided evenly among all classes (Szegedy et al.
    2016), 0 to 1. class_weights: likewise, what each class weighs; None: all the same.
    """

    is_traceable = True
    class_weights: ClassWeights | None = None

    def __init__(self, name: LossName = "cross_entropy", label_smoothing: float = 0.0) -> None:
        self.name: LossName = name
        self.label_smoothing = label_smoothing

    @property
    def weight_per_example(self) -> float | None:
        return 1.0 if self.class_weights is None else None

    def loss_of(self, outputs: Tensor, data: Data) -> Loss:
        labels: Tensor = data[1]
        weights = self.class_weights
        total = sum_of_losses(self.name, outputs, labels, self.label_smoothing, weights)
        return Loss(total, len(labels) if weights is None else weights.sum_over(labels))


def sum_of_losses(
    loss: LossName, logits: Tensor, labels: Tensor, label_smoothing: float = 0.0, weights: ClassWeights | None = None
) -> Tensor:
    """The loss of logits (B, classes) with labels (B,) int64, summed over the examples, ().

    Of mixed examples the labels are shares of the classes, (B, classes) with rows that add up to 1, and the loss is the
    sum of those with each class, times its share.

    `logistic` (paper 1, section 5): each class is an independent logistic unit whose target is whether the example is
    of that class; the cross entropies of all units are added.
    """
    labels = labels.to(logits) if labels.is_floating_point() else labels
    if loss == "cross_entropy":
        weight = None if weights is None else weights.of(logits)
        return F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=label_smoothing)
    targets = labels if labels.is_floating_point() else F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")


def loss_at_chance(loss: LossName, num_classes: int) -> float:
    """The mean loss of a model that only knows that all classes are equally frequent; 0 with a single class."""
    if num_classes < 2:
        return 0.0
    if loss == "cross_entropy":
        return math.log(num_classes)
    others = num_classes - 1  # each unit says 1 / classes
    return math.log(num_classes) + others * math.log(num_classes / others)


AllGather = Callable[[Tensor], Tensor]
"""Gathers f numbers per example, (f, B), from all workers among which the classes are divided: (K, f, B)."""


def loss_of_shard(
    loss: LossName, logits: Tensor, labels: Tensor, first: int, all_gather: AllGather
) -> tuple[Tensor, Tensor]:
    """The loss where each of K workers has the logits of some of the classes.

    Args:
        loss: its name.
        logits: (B, w), of the w classes from `first` on.
        labels: (B,) int64.
        first: index of this worker's first class.
        all_gather: exchanges numbers with the other workers; `logistic` needs none.

    Returns:
        Losses (B,) and the gradient of their sum with respect to `logits`, (B, w). The losses are those of the examples
        for `cross_entropy`, and this worker's contributions to them for `logistic`.
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
    maxima, sums, targets = all_gather(torch.stack([highest, powers.sum(1), own])).unbind(1)  # (K, B) each
    top = maxima.amax(0)
    total = (maxima - top).exp_().mul_(sums).sum(0)
    losses = total.log().add_(top).sub_(targets.sum(0))
    softmax = powers.mul_(((highest - top).exp_() / total)[:, None])
    return losses, softmax.scatter_add_(1, column, -hit)
