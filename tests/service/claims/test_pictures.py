"""Twenty classes and scenes of the claims: the same bytes everywhere, and boxes and masks that fit what is seen."""

import hashlib

import numpy as np
import pytest

from benchmarks.papers.scenes import draw
from service.claims.experiments.pictures import garments_and_digits, scenes_of_digits, two_kinds_of_digits


def test_two_sets_lie_by_turns() -> None:
    images, labels, test_images, test_labels = two_kinds_of_digits()
    assert images.shape == (2800, 28, 28)
    assert (labels[1::2] == labels[::2] + 10).all()
    assert (images[1::2] == images[::2, ::-1]).all()
    assert len(test_images) == len(test_labels) == 2 * 397
    with pytest.raises(ValueError, match="nowhere holds no FashionMNIST/raw"):
        garments_and_digits("nowhere")


def test_scenes_are_exact_to_the_byte_and_masks_lie_in_their_boxes() -> None:
    digest = hashlib.sha256()
    for half in scenes_of_digits():
        for image, target in (half[i] for i in range(len(half))):
            for part in (image, target["boxes"], target["labels"], target["masks"]):
                digest.update(np.ascontiguousarray(part).tobytes())
            assert target["labels"].min() >= 1
            assert target["labels"].max() < half.classes
            assert (target["masks"].sum(0) <= 1).all()  # a pixel shows one picture
            for (left, top, right, bottom), mask in zip(target["boxes"].astype(int), target["masks"], strict=True):
                assert mask[top:bottom, left:right].sum() == mask.sum() >= 28
                assert mask[top].any()
                assert mask[bottom - 1].any()
                assert mask[:, left].any()
                assert mask[:, right - 1].any()
    assert digest.hexdigest() == "ffdd2124542d0b4a5969cc1786854bab40187b8ce8ee09bd4fb2513471bc6163"


def test_scenes_are_drawn_with_boxes_and_names() -> None:
    figure = draw(scenes_of_digits()[0])
    assert len(figure.axes) == 4
    assert all(len(axes.patches) == len(axes.texts) >= 1 for axes in figure.axes)
