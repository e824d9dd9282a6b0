"""Augmentation of training images. Each example has random draws of its own, so a replay on any worker is exact.

The parameters are a pure function of seed, epoch and example, drawn for a minibatch at once, and are the same for sets
in memory and for streamed ones. Images are uint8 until they are normalised; what torchvision's recipes do after that
is done by `finish`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.data.delivery import sent_to
from trainers.data.draws import Float32Array, Int64Array, uniform
from trainers.data.images.boxes import TRIES, first_that_fits, random_boxes
from trainers.data.images.config import RandAugmentSpec, RandomErasingSpec
from trainers.data.images.erasing import erase
from trainers.data.images.mixing import Mixing
from trainers.data.loading.generators import kept_generators, seed_torch
from trainers.errors import SpecRejected

STREAM, OPERATIONS = 1, 8
"""The streams of random draws of crops and mirrors, and of RandAugment; dropout has others."""

AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
EVALUATION_MARGIN = 256 / 224
"""Evaluation resizes the short side to this many sides of the crop (paper 4, section 5.1, after [12])."""

Images = torch.Tensor | Sequence[torch.Tensor]
"""uint8, (B, C, H, W), or B images (C, h, w) of different sizes."""


@dataclass(frozen=True)
class Augmentation:
    """The augmentation of a minibatch, and the resizing for evaluation.

    side: pixels of the square that the model sees; 0: images keep their size, and all have the same.
    resized_crop: whether a training image is a box of random area and aspect, resized, instead of the centre.
    padding: zeros around an image before a crop of its own size is drawn; 0: no crop. flip: mirror half of them.
    operations: RandAugment, after these. erasing, mixing: what is done to images that are normalised.
    """

    seed: int
    side: int = 0
    resized_crop: bool = False
    padding: int = 0
    flip: bool = False
    operations: RandAugmentSpec | None = None
    erasing: RandomErasingSpec | None = None
    mixing: Mixing | None = None

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """C, H, W of images of this size as the model sees them.

        Raises:
            SpecRejected: RandAugment has operations of colours that they do not have.
        """
        if self.operations is not None and channels not in (1, 3):
            raise SpecRejected(
                f"data.rand_augment: it takes grey images and those of 3 colours, and these have {channels} channels; "
                "leave it out"
            )
        return channels, self.side or height, self.side or width

    def train(self, images: Images, epoch: int, examples: Int64Array) -> torch.Tensor:
        """uint8 (B, C, H, W): the images of `examples` (B,) int64 as `epoch` shows them."""
        batch = self._placed(images, epoch, examples)
        return batch if self.operations is None else _operated(batch, self.operations, self.seed, epoch, examples)

    def finish(
        self, images: torch.Tensor, labels: torch.Tensor, epoch: int, examples: Int64Array
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised training images (B, C, H, W), which may be overwritten, and their labels (B,) int64, as the model
        learns them; where images are mixed, the labels are shares of the classes, (B, classes) float32."""
        if self.erasing is not None and len(examples):
            erase(images, self.erasing, self.seed, epoch, examples)
        if self.mixing is None or not len(examples):
            return images, labels
        return self.mixing(images, labels, epoch, examples)

    def _placed(self, images: Images, epoch: int, examples: Int64Array) -> torch.Tensor:
        """uint8 (B, C, H, W): cropped and mirrored."""
        if not (self.side or self.padding or self.flip):
            return _stacked(images)
        units = 3 + 4 * TRIES if self.resized_crop else 3
        draws = uniform(self.seed, epoch, examples, units, STREAM)
        if self.resized_crop:
            batch = _resized_crop(images, draws[:, 3:].reshape(len(examples), TRIES, 4), self.side)
        else:
            batch = self.evaluate(images)
        if self.padding:
            batch = _padded_crop(batch, draws[:, :2], self.padding)
        if self.flip:
            mirrored = sent_to(torch.from_numpy(draws[:, 2] < 0.5), batch.device)
            batch = torch.where(mirrored[:, None, None, None], batch.flip(-1), batch)
        return batch

    def evaluate(self, images: Images) -> torch.Tensor:
        """uint8 (B, C, H, W): not random; a centre crop if the model takes squares of `side` pixels."""
        if not self.side:
            return _stacked(images)
        if isinstance(images, torch.Tensor):
            return self._squared(images)
        return torch.stack([self._squared(image) for image in images])

    def _squared(self, image: torch.Tensor) -> torch.Tensor:
        """(..., side, side). What has that size keeps it, unless the model was trained on crops of larger images."""
        if not self.resized_crop and image.shape[-2:] == (self.side, self.side):
            return image
        return _centre(image, self.side)


def _stacked(images: Images) -> torch.Tensor:
    return images if isinstance(images, torch.Tensor) else torch.stack(list(images))


def _centre(image: torch.Tensor, side: int) -> torch.Tensor:
    """(..., side, side): the middle, after the short side was resized to 256/224 of it."""
    from torchvision.transforms.v2 import functional

    resized = functional.resize(image, [round(side * EVALUATION_MARGIN)], antialias=True)
    centre: torch.Tensor = functional.center_crop(resized, [side, side])
    return centre


def _operated(images: torch.Tensor, how: RandAugmentSpec, seed: int, epoch: int, examples: Int64Array) -> torch.Tensor:
    """(B, C, H, W): each image after operations of RandAugment, with torch's generator seeded for the example.

    They run on the CPU: on a GPU each is a dozen launches, and bits would not be those of a streamed set.
    """
    from torchvision.transforms import v2

    operate = v2.RandAugment(num_ops=how.ops, magnitude=how.magnitude)
    taken = images.cpu()
    done = torch.empty_like(taken)
    with kept_generators():
        for i, example in enumerate(examples.tolist()):
            seed_torch(seed, epoch, example, OPERATIONS)
            done[i] = operate(taken[i])
    return sent_to(done, images.device)


def _padded_crop(images: torch.Tensor, draws: Float32Array, padding: int) -> torch.Tensor:
    """(B, C, H, W): each image moved by up to `padding` pixels in rows and columns; zeros come in. draws: (B, 2)."""
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, [padding] * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, 2 padding + 1, 2 padding + 1, H, W), a view
    corners = sent_to(torch.from_numpy((draws * (2 * padding + 1)).astype(np.int64)), images.device)
    return windows[torch.arange(len(images), device=images.device), :, corners[:, 0], corners[:, 1]]


def _resized_crop(images: Images, draws: Float32Array, side: int) -> torch.Tensor:
    """(B, C, side, side), one box an image. draws: (B, TRIES, 4).

    The resize runs image by image: its bits then cannot depend on the other images of the minibatch.
    """
    from torchvision.transforms.v2 import functional

    heights = np.array([image.shape[-2] for image in images])
    widths = np.array([image.shape[-1] for image in images])
    boxes = crop_boxes(draws, heights, widths).tolist()
    crops = [
        functional.resized_crop(image, *box, [side, side], antialias=True)
        for image, box in zip(images, boxes, strict=True)
    ]
    return torch.stack(crops)


def crop_boxes(draws: Float32Array, heights: Int64Array, widths: Int64Array) -> Int64Array:
    """(B, 4) int64: top, left, height, width of a box with 8 to 100 % of the area and an aspect of 3/4 to 4/3.

    draws: (B, TRIES, 4). The first try that fits is taken, else the middle with the aspect moved into the bounds, as
    torchvision's RandomResizedCrop does. heights, widths: (B,).
    """
    tried = random_boxes(draws, heights, widths, AREA, ASPECT)
    box_height, box_width = tried[..., 2], tried[..., 3]
    fits = (box_width > 0) & (box_width <= widths[:, None]) & (box_height > 0) & (box_height <= heights[:, None])
    return first_that_fits(tried, fits, _centre_boxes(heights, widths))


def _centre_boxes(heights: Int64Array, widths: Int64Array) -> Int64Array:
    """(B, 4): the largest box in the middle whose aspect is within the bounds."""
    box_width = np.minimum(widths, np.rint(heights * ASPECT[1]))
    box_height = np.minimum(heights, np.rint(widths / ASPECT[0]))
    boxes = np.stack([(heights - box_height) // 2, (widths - box_width) // 2, box_height, box_width], axis=-1)
    return boxes.astype(np.int64)
