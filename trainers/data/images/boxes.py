"""Boxes of random area, aspect and place in images, as torchvision draws them."""

import numpy as np
import numpy.typing as npt

from trainers.data.draws import Float32Array, Int64Array

TRIES = 10
"""Boxes drawn for an image before it is done without, as in torchvision."""


def random_boxes(
    draws: Float32Array, heights: Int64Array, widths: Int64Array, area: tuple[float, float], aspect: tuple[float, float]
) -> npt.NDArray[np.float64]:
    """(B, T, 4): top, left, height, width of T boxes an image, in whole pixels; one that does not fit may be empty or
    larger than the image.

    draws: (B, T, 4) in [0, 1). heights, widths: (B,), or (1,) where all are the same. area: the bounds of a box as a
    share of the image. aspect: the bounds of its width over its height.
    """
    draws64 = draws.astype(np.float64)
    pixels = (heights * widths)[:, None] * (area[0] + (area[1] - area[0]) * draws64[..., 0])  # (B, T)
    low, high = np.log(aspect)
    drawn = np.exp(low + (high - low) * draws64[..., 1])
    width, height = np.rint(np.sqrt(pixels * drawn)), np.rint(np.sqrt(pixels / drawn))
    top = np.floor(draws64[..., 2] * (heights[:, None] - height + 1))
    left = np.floor(draws64[..., 3] * (widths[:, None] - width + 1))
    return np.stack([top, left, height, width], axis=-1)


def first_that_fits(
    tried: npt.NDArray[np.float64], fits: npt.NDArray[np.bool_], otherwise: Int64Array | int
) -> Int64Array:
    """(B, 4): of the boxes (B, T, 4) of each image the first one that `fits` (B, T), else `otherwise`."""
    first = tried[np.arange(len(tried)), fits.argmax(axis=1)]
    return np.where(fits.max(axis=1, keepdims=True), first, otherwise).astype(np.int64)
