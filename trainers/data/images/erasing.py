"""Random erasing (Zhong et al. 2020), as torchvision's `RandomErasing` does it, drawn by example.

The box of an image is a pure function of the seed, the epoch and the example. All boxes of a minibatch are overwritten
at once.
"""

import numpy as np
import torch

from trainers.data.delivery import sent_to
from trainers.data.draws import Float32Array, Int64Array, key, uniform
from trainers.data.images.boxes import TRIES, first_that_fits, random_boxes
from trainers.data.images.config import RandomErasingSpec

STREAM, NOISE = 5, 6
"""The streams of random draws of the boxes, and of what is written into them."""


def erase(images: torch.Tensor, how: RandomErasingSpec, seed: int, epoch: int, examples: Int64Array) -> None:
    """Overwrite a box of some images (B, C, H, W) float32, which are those of `examples` (B,) in `epoch`."""
    draws = uniform(seed, epoch, examples, 1 + 4 * TRIES, STREAM)
    boxes = erased_boxes(draws[:, 1:].reshape(len(examples), TRIES, 4), how, images.shape[-2], images.shape[-1])
    boxes[draws[:, 0] >= how.probability] = 0
    if how.value == "random":
        _write_noise(images, boxes, seed, epoch, examples)
        return
    top, left, height, width = sent_to(torch.from_numpy(boxes), images.device)[..., None].unbind(1)  # (B, 1) each
    row, column = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    rows, columns = (row >= top) & (row < top + height), (column >= left) & (column < left + width)
    images.masked_fill_(rows[:, None, :, None] & columns[:, None, None, :], how.value)


def erased_boxes(draws: Float32Array, how: RandomErasingSpec, height: int, width: int) -> Int64Array:
    """(B, 4) int64: top, left, height, width of a box in an image of this size; zeros where no try is smaller than it.

    draws: (B, TRIES, 4).
    """
    aspect = 1 / how.ratio[1], 1 / how.ratio[0]  # of torchvision's ratio, which is height over width
    tried = random_boxes(draws, np.array([height]), np.array([width]), how.scale, aspect)
    fits = (tried[..., 2] < height) & (tried[..., 3] < width)
    return first_that_fits(tried, fits, 0)


def _write_noise(images: torch.Tensor, boxes: Int64Array, seed: int, epoch: int, examples: Int64Array) -> None:
    generator, stream = torch.Generator(), key(seed, epoch, NOISE)
    for i in np.flatnonzero(boxes[:, 2]).tolist():
        top, left, height, width = boxes[i].tolist()
        generator.manual_seed(key(stream, int(examples[i]), 0))
        noise = torch.empty(images.shape[1], height, width).normal_(generator=generator)
        images[i, :, top : top + height, left : left + width] = sent_to(noise, images.device)
