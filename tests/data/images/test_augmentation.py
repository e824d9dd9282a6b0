"""Augmentation is the example's own, exact in a replay, and what torchvision's classes of the same name do."""

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import RandAugment, RandomResizedCrop, functional

from trainers.data.draws import key, uniform
from trainers.data.images.augmentation import OPERATIONS as AUGMENTED
from trainers.data.images.augmentation import Augmentation, crop_boxes
from trainers.data.images.boxes import TRIES
from trainers.data.images.config import RandAugmentSpec

EVERYTHING = Augmentation(seed=3, side=24, resized_crop=True, padding=2, flip=True)
CROP_AND_FLIP = Augmentation(seed=3, padding=4, flip=True)
ONLY_FLIP = Augmentation(seed=3, flip=True)
OPERATIONS = Augmentation(seed=3, padding=2, operations=RandAugmentSpec(ops=3, magnitude=20))


def pictures(count: int, height: int = 28, width: int = 28, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("augmentation", [EVERYTHING, CROP_AND_FLIP, ONLY_FLIP, OPERATIONS])
def test_example_is_the_same_in_any_minibatch_and_form(augmentation: Augmentation) -> None:
    images, ids = pictures(12), np.arange(100, 112)
    whole = augmentation.train(images, 5, ids)
    assert whole.dtype == torch.uint8
    assert whole.shape[-1] == (augmentation.side or 28)
    shuffled = np.array([7, 0, 3])
    assert torch.equal(augmentation.train(images[shuffled], 5, ids[shuffled]), whole[shuffled])
    one_by_one = [augmentation.train(images[i : i + 1], 5, ids[i : i + 1])[0] for i in range(12)]
    assert torch.equal(torch.stack(one_by_one), whole)
    assert torch.equal(augmentation.train(list(images), 5, ids), whole)  # as a streamed set gives them
    assert not torch.equal(augmentation.train(images, 6, ids), whole)
    assert torch.equal(images, pictures(12))  # the source is not written to


def test_padded_crop_moves_the_image_and_brings_zeros_in() -> None:
    images, ids = pictures(64), np.arange(64)
    moved = Augmentation(seed=0, padding=2).train(images, 0, ids)
    corners = (uniform(0, 0, ids, 3, 1)[:, :2] * 5).astype(int)
    assert set(corners.ravel()) == {0, 1, 2, 3, 4}  # every shift occurs, the ends too
    for image, (top, left), result in zip(images, corners.tolist(), moved, strict=True):
        assert torch.equal(functional.crop(functional.pad(image, [2]), top, left, 28, 28), result)


def test_operations_are_those_of_torchvision_after_the_crop() -> None:
    images, ids = pictures(20, channels=1), np.arange(20)
    state = torch.random.get_rng_state()
    found = OPERATIONS.train(images, 4, ids)
    assert torch.equal(state, torch.random.get_rng_state())
    with torch.random.fork_rng():
        for image, i, result in zip(Augmentation(seed=3, padding=2).train(images, 4, ids), ids, found, strict=True):
            torch.manual_seed(key(key(3, 4, AUGMENTED), int(i), 0))
            assert torch.equal(RandAugment(num_ops=3, magnitude=20)(image), result)


def test_flip_mirrors_about_half() -> None:
    images = pictures(1000, 4, 4)
    flipped = ONLY_FLIP.train(images, 0, np.arange(1000))
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(images, flipped, strict=True)])
    same = torch.tensor([torch.equal(a, b) for a, b in zip(images, flipped, strict=True)])
    assert bool((mirrored ^ same).all())
    assert 430 < int(mirrored.sum()) < 570


def test_boxes_have_the_distribution_of_torchvision() -> None:
    count, height, width = 4000, 60, 100
    draws = uniform(0, 0, np.arange(count), 4 * TRIES, 1).reshape(count, TRIES, 4)
    boxes = crop_boxes(draws, np.full(count, height), np.full(count, width))
    top, left, box_height, box_width = boxes.T
    assert min(top.min(), left.min()) >= 0
    assert (top + box_height).max() <= height
    assert (left + box_width).max() <= width
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = RandomResizedCrop(8)
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        params = [theirs.make_params([image]) for _ in range(count)]
    expected = np.array([[p["top"], p["left"], p["height"], p["width"]] for p in params])
    for ours, reference in zip(boxes.T, expected.T, strict=True):
        assert ours.mean() == pytest.approx(reference.mean(), rel=0.08)
        assert ours.std() == pytest.approx(reference.std(), rel=0.08)


@pytest.mark.parametrize(
    ("height", "width", "box"), [(10, 400, [0, 193, 10, 13]), (400, 10, [193, 0, 13, 10]), (30, 30, [0, 0, 30, 30])]
)
def test_box_falls_back_to_the_middle(height: int, width: int, box: list[int]) -> None:
    draws = np.ones((1, TRIES, 4), dtype=np.float32)
    draws[..., :2] = 0.99999  # the whole area with the widest aspect: does not fit
    assert crop_boxes(draws, np.array([height]), np.array([width])).tolist() == [box]


def test_evaluation_resizes_and_takes_the_centre() -> None:
    images = pictures(3, 70, 60)
    expected = functional.center_crop(functional.resize(images, [37], antialias=True), [32, 32])
    augmentation = Augmentation(seed=0, side=32, resized_crop=True, padding=4, flip=True)
    assert torch.equal(augmentation.evaluate(images), expected)
    assert torch.equal(augmentation.evaluate(list(images)), expected)
    assert torch.equal(Augmentation(seed=0, padding=4, flip=True).evaluate(images), images)
