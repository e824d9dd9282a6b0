"""Mixup and CutMix of a minibatch, against their formulas written out."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from trainers.data.draws import key
from trainers.data.images.mixing import STREAM, Mixing

IDS = np.array([12, 3, 44, 7, 9])
LABELS = torch.tensor([0, 2, 2, 1, 0])


def images() -> Tensor:
    return torch.randn(5, 3, 20, 28, generator=torch.Generator().manual_seed(0))


def by_hand(seed: int, epoch: int, first: int, mixup: float | None, cutmix: float | None) -> tuple[Tensor, float]:
    """The images, and the share of their own labels, with the draws of torchvision's classes."""
    x, others = images(), images()[[4, 0, 1, 2, 3]]
    with torch.random.fork_rng():
        torch.manual_seed(key(key(seed, epoch, STREAM), first, 0))
        takes_mixup = cutmix is None or (mixup is not None and int(torch.multinomial(torch.tensor([0.5, 0.5]), 1)) == 0)
        alpha = torch.tensor([mixup if takes_mixup else cutmix])
        share = float(torch.distributions.Beta(alpha, alpha).sample())
        if takes_mixup:
            return share * x + (1 - share) * others, share
        column, row = int(torch.randint(28, (1,))), int(torch.randint(20, (1,)))
    half = 0.5 * math.sqrt(1 - share)
    left, right = max(0, column - int(half * 28)), min(28, column + int(half * 28))
    top, bottom = max(0, row - int(half * 20)), min(20, row + int(half * 20))
    x[:, :, top:bottom, left:right] = others[:, :, top:bottom, left:right]
    return x, 1 - (bottom - top) * (right - left) / (20 * 28)


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.2, None), (None, 1.0), (0.3, 0.7)])
def test_images_and_labels_are_those_of_the_formula(mixup: float | None, cutmix: float | None) -> None:
    mixing, shares = Mixing(3, 4, mixup, cutmix), set()
    for epoch in range(12):
        mixed, labels = mixing(images(), LABELS, epoch, IDS)
        expected, share = by_hand(3, epoch, 12, mixup, cutmix)
        torch.testing.assert_close(mixed, expected)
        others = F.one_hot(LABELS[[4, 0, 1, 2, 3]], 4)
        torch.testing.assert_close(labels, share * F.one_hot(LABELS, 4) + (1 - share) * others)
        shares.add(share)
    assert len(shares) > 6


def test_draws_belong_to_the_minibatch_and_leave_the_generators_alone() -> None:
    mixing, state = Mixing(3, 4, 0.2, 1.0), torch.random.get_rng_state()
    first, _ = mixing(images(), LABELS, 1, IDS)
    torch.rand(5)
    mixing(images(), LABELS, 2, IDS)
    again, _ = mixing(images(), LABELS, 1, IDS)
    assert torch.equal(first, again)
    other, _ = mixing(images(), LABELS, 1, IDS[::-1])  # of another first example
    assert not torch.equal(first, other)
    torch.random.set_rng_state(state)
    mixing(images(), LABELS, 1, IDS)
    assert torch.equal(state, torch.random.get_rng_state())
