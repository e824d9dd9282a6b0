"""Boxes of objects in images, and their masks."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.models.objective import Loss, Model
from trainers.tasks.average_precision import average_precisions, objects
from trainers.tasks.base import Task
from trainers.tasks.measures import Mean, Measure

if TYPE_CHECKING:
    from collections.abc import Iterator

TAKEN = ("boxes", "labels", "masks", "keypoints")
"""What of an example's dict goes to the model."""


class Detection(Task):
    """A model as torchvision's: in training a dict of losses for images and targets, otherwise boxes for images.

    An example is an image (C, H, W) and a dict of `boxes` (N, 4), x1 y1 x2 y2 in pixels, and `labels` (N,) from 1 on;
    0 is the ground. Where it has `masks` (N, H, W) and the model gives some, they are measured too. Each loss is the
    mean over a minibatch that the model makes; a minibatch weighs its images.
    """

    headline: ClassVar[str] = "map"
    higher_is_better: ClassVar[bool] = True

    @property
    def weight_per_example(self) -> float:
        return 1.0

    def check(self, facts: DataFacts) -> None:
        missing = [name for name in ("torchmetrics", "pycocotools") if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(f"{' and '.join(missing)} is not installed: pip install 'millrace[detection]'")
        if facts.classes < 2 or len(facts.inputs) != 3:
            raise ValueError(
                "detection needs a dataset of your own, whose examples are an image and a dict of boxes and labels, "
                "and whose `classes` says how many classes there are, with the ground, which is 0"
            )

    def collate(self, examples: list[Any]) -> Data:
        """Images (C, H, W) float32, from 0 to 1, of any sizes, and what belongs to them."""
        return tuple(_image(image) for image, _ in examples), tuple(_target(target) for _, target in examples)

    def model(self, facts: DataFacts) -> nn.Module:
        from trainers.models.networks.small_rcnn import small_rcnn

        return small_rcnn(facts.classes, facts.inputs)

    def loss(self, model: Model, data: Data) -> Loss:
        images, targets = data
        losses = model(list(images), [dict(target) for target in targets])
        if not isinstance(losses, Mapping) or not losses:
            raise ValueError(f"the model gives {type(losses).__name__}; in training it must give a dict of losses")
        total: Tensor = torch.stack([loss.sum() for loss in losses.values()]).sum() * len(images)
        return Loss(total, len(images))

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        images, targets = data
        found = model(list(images))
        masks = all("masks" in one for one in (*found, *targets))
        seen = tuple(objects(one, target, masks) for one, target in zip(found, targets, strict=True))
        with _giving_losses(model):
            loss = self.loss(model, data)
        return {"loss": Mean(float(loss.total), loss.weight)} | average_precisions(seen, masks)


@contextmanager
def _giving_losses(model: Any) -> Iterator[None]:
    """Have the parts of a detector give losses, and nothing else train: no statistics, no dropout. What they draw is
    the same each time."""
    parts = [part for part in model.modules() if type(part).__module__.startswith("torchvision.models.detection")]
    parts = [model, *parts]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for part in parts:
            part.training = True
        try:
            yield
        finally:
            for part in parts:
                part.training = False


def _image(image: Any) -> Tensor:
    tensor = torch.as_tensor(image)
    return tensor.float() / 255 if tensor.dtype == torch.uint8 else tensor.float()


def _target(target: Any) -> dict[str, Tensor]:
    """Raises ValueError for what are no boxes."""
    if not isinstance(target, Mapping) or not {"boxes", "labels"} <= target.keys():
        raise ValueError("an example must be an image and a dict with boxes and labels")
    taken = {name: torch.as_tensor(target[name]) for name in TAKEN if name in target}
    boxes = taken["boxes"] = taken["boxes"].float().reshape(-1, 4)
    taken["labels"] = taken["labels"].long()
    if len(taken["labels"]) != len(boxes):
        raise ValueError(f"{len(boxes)} boxes and {len(taken['labels'])} labels; there must be one for each")
    if not bool((boxes[:, 2:] > boxes[:, :2]).all()):
        raise ValueError("a box is x1, y1, x2, y2 in pixels, with x2 above x1 and y2 above y1")
    return taken
