"""Augmentation of training images. Each example has random draws of its own, so a replay on any worker is exact.

The parameters are a pure function of seed, epoch and example, drawn for a minibatch at once, and are the same for sets
in memory and for streamed ones. Images stay uint8 here; they are normalised afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainers.data.delivery import sent_to
from trainers.data.draws import Float32Array, Int64Array, uniform

STREAM = 1
"""The stream of random draws that belongs to augmentation; dropout has others."""

TRIES = 10
"""Boxes drawn for a resized crop before the centre is taken, as in torchvision."""

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
    """

    seed: int
    side: int = 0
    resized_crop: bool = False
    padding: int = 0
    flip: bool = False

    def train(self, images: Images, epoch: int, examples: Int64Array) -> torch.Tensor:
        """uint8 (B, C, H, W): the images of `examples` (B,) int64 as `epoch` shows them."""
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
    draws64 = draws.astype(np.float64)
    area = (heights * widths)[:, None] * (AREA[0] + (AREA[1] - AREA[0]) * draws64[..., 0])  # (B, TRIES) pixels
    low, high = np.log(ASPECT)
    aspect = np.exp(low + (high - low) * draws64[..., 1])
    box_width, box_height = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    fits = (box_width > 0) & (box_width <= widths[:, None]) & (box_height > 0) & (box_height <= heights[:, None])
    top = np.floor(draws64[..., 2] * (heights[:, None] - box_height + 1))
    left = np.floor(draws64[..., 3] * (widths[:, None] - box_width + 1))
    tried = np.stack([top, left, box_height, box_width], axis=-1)  # (B, TRIES, 4)
    first = tried[np.arange(len(draws)), fits.argmax(axis=1)]
    return np.where(fits.any(axis=1)[:, None], first, _centre_boxes(heights, widths)).astype(np.int64)


def _centre_boxes(heights: Int64Array, widths: Int64Array) -> Int64Array:
    """(B, 4): the largest box in the middle whose aspect is within the bounds."""
    box_width = np.minimum(widths, np.rint(heights * ASPECT[1]))
    box_height = np.minimum(heights, np.rint(widths / ASPECT[0]))
    boxes = np.stack([(heights - box_height) // 2, (widths - box_width) // 2, box_height, box_width], axis=-1)
    return boxes.astype(np.int64)
