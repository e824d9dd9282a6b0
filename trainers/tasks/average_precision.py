"""COCO's figures: average precision and recall of boxes, and of masks where the model gives them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainers.tasks.measures import Measure

if TYPE_CHECKING:
    from typing import Self

Rows = npt.NDArray[np.float32]
Masks = tuple[tuple[int, int], tuple[bytes, ...]]
"""Height and width, and a mask each: its pixels' bits, compressed."""
FIGURES = ("map", "map_50", "map_75", "mar_100")
"""Of boxes, as torchmetrics names them."""
MASK = "mask_"
"""Stands before the name of the same figure of masks."""
OVERLAPS: dict[str, Literal["bbox", "segm"]] = {"": "bbox", MASK: "segm"}
"""By what stands before the name: by which overlap torchmetrics tells whether an object was found."""
INSIDE = 0.5
"""From which value on a pixel of a predicted mask belongs to the object."""


@dataclass(frozen=True, eq=False)
class Objects:
    """Of one image: what was found, (N, 6), a box with score and label, and what is there, (M, 5), with the label."""

    found: Rows
    there: Rows
    found_masks: Masks | None = None
    """None where the model gives none, or the data have none."""
    there_masks: Masks | None = None


@dataclass(frozen=True)
class AveragePrecision(Measure):
    """One of the figures, of all images together. It is no sum: what was found in each image is kept, in the images'
    order, some kilobytes an image, and the figure is torchmetrics' for the whole set."""

    name: str
    images: tuple[Objects, ...]

    def __add__(self, other: Self) -> Self:
        return replace(self, images=self.images + other.images)

    @property
    def value(self) -> float:
        kind = MASK if self.name.startswith(MASK) else ""
        return _figures(self.images, kind)[self.name.removeprefix(kind)]


def objects(found: Mapping[str, Tensor], target: Mapping[str, Tensor], masks: bool = False) -> Objects:
    """What a detector found in an image, and what is there.

    Args:
        found: `boxes` (N, 4), `scores` and `labels` (N,), and `masks` (N, 1, H, W) from 0 to 1.
        target: `boxes` (M, 4), `labels` (M,), and `masks` (M, H, W) of 0 and 1.
        masks: Whether both have masks.
    """
    rows = _rows(found, "boxes", "scores", "labels"), _rows(target, "boxes", "labels")
    if not masks:
        return Objects(*rows)
    inside = found["masks"].detach().flatten(0, 1) > INSIDE
    return Objects(*rows, _encoded(inside), _encoded(target["masks"] != 0))


def average_precisions(images: tuple[Objects, ...], masks: bool = False) -> dict[str, Measure]:
    """All figures by name.

    Args:
        masks: Whether those of masks are among them.
    """
    names = [kind + name for kind in (OVERLAPS if masks else ("",)) for name in FIGURES]
    return {name: AveragePrecision(name, images) for name in names}


@lru_cache(maxsize=len(OVERLAPS))  # all figures are asked of the same images, one after another
def _figures(images: tuple[Objects, ...], kind: str) -> dict[str, float]:
    """By the names of `FIGURES`."""
    from torchmetrics.detection import MeanAveragePrecision

    measured = MeanAveragePrecision(box_format="xyxy", iou_type=OVERLAPS[kind], backend="pycocotools")
    measured.warn_on_many_detections = False
    for image in images:  # one at a time, so that no more than its masks are unpacked
        found, there = torch.from_numpy(image.found), torch.from_numpy(image.there)
        known = {"boxes": there[:, :4], "labels": there[:, 4].long()}
        guessed = {"boxes": found[:, :4], "scores": found[:, 4], "labels": found[:, 5].long()}
        if image.found_masks and image.there_masks:
            guessed["masks"], known["masks"] = _decoded(image.found_masks), _decoded(image.there_masks)
        measured.update([guessed], [known])
    computed = measured.compute()
    return {name: float(computed[name]) for name in FIGURES}


def _rows(named: Mapping[str, Tensor], *names: str) -> Rows:
    """The named tensors side by side, a row a box."""
    tensors = [named[name].detach().cpu().float() for name in names]
    columns = [tensor if tensor.ndim > 1 else tensor[:, None] for tensor in tensors]
    return torch.cat(columns, 1).numpy()


def _encoded(masks: Tensor) -> Masks:
    """Of (N, H, W) bool."""
    height, width = masks.shape[1:]
    return (height, width), tuple(zlib.compress(np.packbits(one).tobytes()) for one in masks.cpu().numpy())


def _decoded(masks: Masks) -> Tensor:
    """(N, H, W) bool."""
    size, packed = masks
    pixels = np.zeros((len(packed), *size), bool)
    for mask, one in zip(pixels, packed, strict=True):
        bits = np.frombuffer(zlib.decompress(one), np.uint8)
        mask[:] = np.unpackbits(bits, count=mask.size).reshape(size)
    return torch.from_numpy(pixels)
