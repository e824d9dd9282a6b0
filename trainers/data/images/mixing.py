"""Mixup and CutMix: images of a minibatch mixed in pairs, with torchvision's own classes.

An image is mixed with the one before it in the minibatch, which a random permutation has put there. What share is its
own is drawn for the minibatch, from the seed, the epoch and the first example, which no other minibatch of the epoch
has. So it does not depend on who computes the minibatch, nor on which were computed before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from torch import Tensor

from trainers.data.draws import Int64Array
from trainers.data.loading.generators import kept_generators, seed_torch

STREAM = 7
"""The stream of random draws that belongs to mixing."""


@dataclass(frozen=True)
class Mixing:
    """mixup, cutmix: alpha of the one or the other; None: that is not used. Where both are, each minibatch draws one
    of them. classes: of the labels."""

    seed: int
    classes: int
    mixup: float | None = None
    cutmix: float | None = None

    def __call__(self, images: Tensor, labels: Tensor, epoch: int, examples: Int64Array) -> tuple[Tensor, Tensor]:
        """The images (B, C, H, W) float32 of `examples` (B,), mixed, and how much of each class they are, (B, classes)
        float32 whose rows add up to 1. labels: (B,) int64."""
        with kept_generators():
            seed_torch(self.seed, epoch, int(examples[0]), STREAM)
            return _transform(self.classes, self.mixup, self.cutmix)(images, labels)


@cache
def _transform(
    classes: int, mixup: float | None, cutmix: float | None
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    from torchvision.transforms import v2

    chosen = [v2.MixUp(alpha=mixup, num_classes=classes)] if mixup is not None else []
    chosen += [v2.CutMix(alpha=cutmix, num_classes=classes)] if cutmix is not None else []
    transform: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = (
        chosen[0] if len(chosen) == 1 else v2.RandomChoice(chosen)
    )
    return transform
