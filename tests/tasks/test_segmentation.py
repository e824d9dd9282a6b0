"""A class for each pixel: metrics, and models that give a dict."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainers.data.facts import DataFacts
from trainers.tasks.segmentation import Segmentation

DRAW = torch.Generator().manual_seed(0)
IMAGES = torch.randn(6, 3, 5, 4, generator=DRAW)
CLASSES = torch.randint(0, 4, (6, 5, 4), generator=DRAW)
CLASSES[:, 0] = 255


class Twice(nn.Module):
    """As torchvision's segmentation models with an auxiliary classifier; its `aux` is of half the size."""

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        out = torch.cat([images, images.mean(1, keepdim=True)], 1)
        return {"out": out, "aux": out[:, :, ::2, ::2]}


def task() -> Segmentation:
    found = Segmentation()
    found.facts = DataFacts((3, 5, 4), outputs=20, pixel_classes=4)
    return found


def test_metrics_add_up_to_those_of_the_whole_set() -> None:
    from torchmetrics.classification import MulticlassJaccardIndex  # takes seconds, and this test alone needs it

    model, (first, *others) = Twice(), [slice(0, 1), slice(1, 4), slice(4, 6)]
    found = dict(task().metrics(model, (IMAGES[first], CLASSES[first])))
    for part in others:
        more = task().metrics(model, (IMAGES[part], CLASSES[part]))
        found = {name: measure + more[name] for name, measure in found.items()}
    logits = model(IMAGES)["out"]
    theirs = MulticlassJaccardIndex(4, ignore_index=255)(logits, CLASSES)
    assert found["mean_iou"].value == pytest.approx(float(theirs))
    right = logits.argmax(1) == CLASSES
    assert found["pixel_accuracy"].value == pytest.approx(float(right[CLASSES != 255].double().mean()))
    assert found["loss"].value == pytest.approx(float(F.cross_entropy(logits, CLASSES, ignore_index=255)))


def test_the_auxiliary_loss_counts_half_as_in_torchvisions_reference() -> None:
    loss = task().loss(Twice(), (IMAGES, CLASSES))
    outputs = Twice()(IMAGES)
    aux = F.interpolate(outputs["aux"], size=(5, 4), mode="bilinear", align_corners=False)
    reference = F.cross_entropy(outputs["out"], CLASSES, ignore_index=255)
    reference = reference + 0.5 * F.cross_entropy(aux, CLASSES, ignore_index=255)
    torch.testing.assert_close(loss.total / loss.weight, reference)
    assert loss.weight == 6 * 16


def test_a_minibatch_without_a_pixel_that_counts_weighs_nothing() -> None:
    loss = task().loss(Twice(), (IMAGES, torch.full_like(CLASSES, 255)))
    assert (float(loss.total), loss.weight) == (0, 0)
