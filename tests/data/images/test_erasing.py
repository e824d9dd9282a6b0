"""Random erasing is the example's own, and what torchvision's class does."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import RandomErasing, functional

from trainers.data.draws import uniform
from trainers.data.images.augmentation import Augmentation
from trainers.data.images.boxes import TRIES
from trainers.data.images.config import RandomErasingSpec
from trainers.data.images.erasing import STREAM, erased_boxes

IDS = np.arange(100, 140)


def images() -> Tensor:
    return torch.randn(40, 3, 20, 28, generator=torch.Generator().manual_seed(0))


def erased(how: RandomErasingSpec, chosen: slice | list[int] = slice(None), epoch: int = 5) -> Tensor:
    ids = IDS[chosen]
    return Augmentation(seed=3, erasing=how).finish(images()[chosen], torch.zeros(len(ids)), epoch, ids)[0]


@pytest.mark.parametrize("value", [1.5, "random"])
def test_example_loses_the_same_box_in_any_minibatch(value: float | str) -> None:
    how = RandomErasingSpec(probability=0.6, value=value)
    whole = erased(how)
    assert torch.equal(erased(how, [7, 0, 3]), whole[[7, 0, 3]])
    assert not torch.equal(erased(how, epoch=6), whole)


def test_box_is_erased_as_torchvision_does() -> None:
    how = RandomErasingSpec(probability=0.6, value=1.5)
    draws = uniform(3, 5, IDS, 1 + 4 * TRIES, STREAM)
    boxes = erased_boxes(draws[:, 1:].reshape(-1, TRIES, 4), how, 20, 28).tolist()
    expected = [
        functional.erase(image, top, left, height, width, torch.tensor(1.5)) if chance < 0.6 else image
        for image, chance, (top, left, height, width) in zip(images(), draws[:, 0], boxes, strict=True)
    ]
    assert torch.equal(erased(how), torch.stack(expected))
    noise = erased(RandomErasingSpec(probability=0.6, value="random"))
    written = erased(how) == 1.5
    assert torch.equal(noise != images(), written)
    assert noise[written].mean().abs() < 0.1
    assert noise[written].std() == pytest.approx(1, abs=0.1)


def test_boxes_have_the_distribution_of_torchvision() -> None:
    count, height, width = 4000, 60, 100
    draws = uniform(0, 0, np.arange(count), 4 * TRIES, STREAM).reshape(count, TRIES, 4)
    boxes = erased_boxes(draws, RandomErasingSpec(ratio=(0.2, 1.5)), height, width)
    assert (boxes[:, 0] + boxes[:, 2]).max() <= height
    assert (boxes[:, 1] + boxes[:, 3]).max() <= width
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = RandomErasing(ratio=(0.2, 1.5))
        params = [theirs.make_params([torch.zeros(3, height, width)]) for _ in range(count)]
    expected = np.array([[p["i"], p["j"], p["h"], p["w"]] for p in params])
    for ours, reference in zip(boxes.T, expected.T, strict=True):
        assert ours.mean() == pytest.approx(reference.mean(), rel=0.08)
        assert ours.std() == pytest.approx(reference.std(), rel=0.08)


def test_share_of_images_and_boxes_too_large() -> None:
    draws = uniform(0, 0, np.arange(4000), 1, STREAM)
    assert (draws < 0.25).mean() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(erased(RandomErasingSpec(probability=0)), images())
    assert torch.equal(erased(RandomErasingSpec(probability=1, scale=(1, 1), ratio=(1, 1))), images())  # never smaller
