"""A class for each pixel."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.data.batches import Data
from trainers.data.facts import NO_CLASS, DataFacts
from trainers.models.losses import ClassWeights
from trainers.models.objective import Loss, Model, Supervised, shape_of
from trainers.tasks.base import Task
from trainers.tasks.class_weights import GivenWeights, weigh_classes
from trainers.tasks.measures import Mean, MeanIoU, Measure


class Segmentation(Supervised, Task):
    """A model gives logits (B, classes, H, W) for images, and each pixel has a class; 255 does not count.

    The loss is the cross entropy, summed over the pixels that count. A model may give a dict, as torchvision's do: its
    `aux` is added with a weight of its own.
    """

    headline: ClassVar[str] = "mean_iou"
    higher_is_better: ClassVar[bool] = True

    class_weights: ClassWeights | None = None

    def __init__(self, aux_weight: float = 0.5, class_weight: GivenWeights = None) -> None:
        """aux_weight: Of the loss of `aux`; 0.5 as in torchvision's references. class_weight: What a pixel of each
        class weighs while training, or `balanced`; None: all the same."""
        if aux_weight < 0:
            raise ValueError(f"aux_weight is {aux_weight}; it must be 0 or more")
        self.aux_weight = aux_weight
        self.given_weights = class_weight

    @property
    def hugging_face_head(self) -> str:
        return "SemanticSegmentation"

    def check(self, facts: DataFacts) -> None:
        if not facts.pixel_classes:
            raise ValueError(
                "segmentation needs images (N, C, H, W) with a class for each pixel, (N, H, W) of integers, and these "
                "data have none; give both by a function of your own"
            )
        self.class_weights, self.told = weigh_classes(self.given_weights, facts.pixel_classes, facts)

    def inputs(self, data: Data) -> Tensor:
        """(B, C, H, W) float32; bytes become 0 to 1."""
        images: Tensor = data[0]
        return images if images.is_floating_point() else images.to(torch.float32) / 255

    def loss_of(self, outputs: Any, data: Data) -> Loss:
        classes, weights = _classes(data), self.class_weights
        total = _cross_entropy(logits_of(outputs, classes), classes, weights)
        if isinstance(outputs, Mapping) and self.aux_weight and outputs.get("aux") is not None:
            total = total + self.aux_weight * _cross_entropy(_sized(outputs["aux"], classes), classes, weights)
        counts = classes != NO_CLASS
        return Loss(total, int(counts.sum()) if weights is None else weights.sum_over(classes[counts]))

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        classes = _classes(data)
        logits = logits_of(model(self.inputs(data)), classes)
        counts = classes != NO_CLASS
        found, wanted, num = logits.argmax(1)[counts], classes[counts], logits.shape[1]
        pairs = torch.bincount(wanted * num + found, minlength=num * num).view(num, num).double()
        right = pairs.diagonal()
        unions = pairs.sum(0) + pairs.sum(1) - right
        count = int(counts.sum())
        return {
            "loss": Mean(float(_cross_entropy(logits, classes)), count),
            "mean_iou": MeanIoU(tuple(right.tolist()), tuple(unions.tolist())),
            "pixel_accuracy": Mean(float(right.sum()), count),
        }

    def chance_loss(self) -> float:
        return math.log(self.facts.pixel_classes)


def logits_of(outputs: Any, classes: Tensor) -> Tensor:
    """(B, classes, H, W), from a tensor or from the `out` of a dict, at the size of the classes (B, H, W).

    Raises:
        ValueError: They are something else.
    """
    logits = outputs.get("out") if isinstance(outputs, Mapping) else outputs
    if not isinstance(logits, Tensor) or logits.ndim != 4:
        shape = shape_of(logits if isinstance(logits, Tensor) else outputs)
        raise ValueError(
            f"the model gives {shape}; it must give logits of shape (B, classes, H, W), or a dict with `out`"
        )
    return _sized(logits, classes)


def _sized(logits: Tensor, classes: Tensor) -> Tensor:
    if logits.shape[-2:] == classes.shape[-2:]:
        return logits
    return F.interpolate(logits, size=classes.shape[-2:], mode="bilinear", align_corners=False)


def _classes(data: Data) -> Tensor:
    """(B, H, W) int64."""
    classes: Tensor = data[1]
    return classes.to(torch.int64)


def _cross_entropy(logits: Tensor, classes: Tensor, weights: ClassWeights | None = None) -> Tensor:
    """Summed over the pixels that count. Of a row a pixel, for that of images has no deterministic kernel on a GPU."""
    rows = logits.permute(0, 2, 3, 1).reshape(-1, logits.shape[1])
    weight = None if weights is None else weights.of(rows)
    return F.cross_entropy(rows, classes.reshape(-1), weight, ignore_index=NO_CLASS, reduction="sum")
