"""Boxes of objects: COCO's figures of the whole set, and what is refused."""

import pytest
import torch

from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.spec import TrainSpec
from trainers.tasks.average_precision import FIGURES
from trainers.tasks.config import TaskSpec
from trainers.tasks.detection import Detection
from trainers.tasks.registry import build_task, build_task_model

FACTS = DataFacts((1, 24, 20), classes=3)


def spec(**fields: object) -> TrainSpec:
    data = {"name": "tests.tasks.usersets:boxes_in_images", "limit": 6, "loader_processes": 0, "root": "nowhere"}
    usual = {"task": "detection", "data": data, "batch": 2, "epochs": 1, "workers": {"count": 1, "virtual": 2}}
    return TrainSpec.model_validate(usual | fields)


def test_figures_are_those_of_torchmetrics_for_the_whole_set() -> None:
    from torchmetrics.detection import MeanAveragePrecision

    task, draw = build_task(TaskSpec(name="detection"), "cross_entropy", FACTS), torch.Generator().manual_seed(0)
    assert isinstance(task, Detection)
    examples = []
    for _ in range(5):
        corners = torch.randint(0, 9, (2, 2), generator=draw).float()
        boxes = torch.cat([corners, corners + torch.randint(3, 9, (2, 2), generator=draw)], 1)
        labels = torch.randint(1, 3, (2,), generator=draw)
        examples.append((torch.rand(1, 24, 20, generator=draw), {"boxes": boxes, "labels": labels}))

    class Guesses(torch.nn.Module):
        """Boxes near the right ones."""

        def forward(self, images: list, targets: list | None = None) -> object:
            if self.training:
                return {"loss": images[0].mean()}
            near = torch.Generator().manual_seed(len(images))
            right = {id(image): target for batch in seen for image, target in zip(*batch, strict=True)}
            return [guess(right[id(image)], near) for image in images]

    def guess(target: dict[str, torch.Tensor], near: torch.Generator) -> dict[str, torch.Tensor]:
        moved = target["boxes"] + torch.randint(-1, 2, (2, 4), generator=near)
        return {"boxes": moved, "scores": torch.rand(2, generator=near), "labels": target["labels"]}

    seen = [task.collate(examples[:2]), task.collate(examples[2:])]
    model = Guesses().eval()
    first, second = (task.metrics(model, batch) for batch in seen)
    found = {name: (measure + second[name]).value for name, measure in first.items()}
    whole = MeanAveragePrecision(backend="pycocotools")
    for images, targets in seen:
        whole.update(model(list(images)), list(targets))
    theirs = whole.compute()
    assert {name: found[name] for name in FIGURES} == pytest.approx({name: float(theirs[name]) for name in FIGURES})
    assert 0 < found["map"] < 1
    assert not model.training


def test_figures_of_masks_are_those_of_torchmetrics_too() -> None:
    from torchmetrics.detection import MeanAveragePrecision

    task, draw = build_task(TaskSpec(name="detection"), "cross_entropy", FACTS), torch.Generator().manual_seed(0)
    examples, found = [], []
    for number in range(4):
        masks = torch.zeros(2, 24, 20, dtype=torch.uint8)
        masks[0, 2:9, 3:12] = masks[1, 11:20, 5 : 10 + number] = 1
        boxes = torch.tensor([[3.0, 2, 12, 9], [5, 11, 10 + number, 20]])
        labels = torch.tensor([1, 2])
        examples.append((torch.rand(1, 24, 20, generator=draw), {"boxes": boxes, "labels": labels, "masks": masks}))
        near = (masks[:, None] * 0.9).roll(number, -1)  # the further, the worse
        found.append({"boxes": boxes, "scores": torch.tensor([0.9, 0.4]), "labels": labels, "masks": near})
    found[0] = {name: value[:0] for name, value in found[0].items()}

    class Guesses(torch.nn.Module):
        """Gives what was prepared, image by image."""

        def forward(self, images: list, targets: list | None = None) -> object:
            if self.training:
                return {"loss": images[0].mean()}
            return [found[[torch.equal(image, one) for one, _ in examples].index(True)] for image in images]

    batches = [task.collate(examples[:1]), task.collate(examples[1:])]
    first, second = (task.metrics(Guesses().eval(), batch) for batch in batches)
    assert first.keys() == {"loss", *FIGURES, *(f"mask_{name}" for name in FIGURES)}
    whole = MeanAveragePrecision(iou_type="segm", backend="pycocotools")
    guessed = [one | {"masks": one["masks"].flatten(0, 1) > 0.5} for one in found]
    whole.update(guessed, [target | {"masks": target["masks"].bool()} for _, target in examples])
    theirs = whole.compute()
    ours = {name: (first[f"mask_{name}"] + second[f"mask_{name}"]).value for name in FIGURES}
    assert ours == pytest.approx({name: float(theirs[name]) for name in FIGURES})
    assert 0 < ours["map"] < (first["map"] + second["map"]).value < 1


def test_an_image_in_which_nothing_is_found_counts() -> None:
    task = build_task(TaskSpec(name="detection"), "cross_entropy", FACTS)
    data = task.collate([(torch.rand(1, 24, 20), {"boxes": [[1, 2, 9, 9]], "labels": [1]})] * 2)

    class Blind(torch.nn.Module):
        """Finds nothing."""

        def forward(self, images: list, targets: list | None = None) -> object:
            nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0).long()}
            return {"loss": images[0].mean()} if self.training else [nothing for _ in images]

    found = task.metrics(Blind().eval(), data)
    assert {name: found[name].value for name in FIGURES} == dict.fromkeys(FIGURES, 0.0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"data": "digits"}, "an image and a dict of boxes"),
        ({"model": "resnet18"}, "gives no boxes"),
        ({"model": {"name": "hf:detr"}}, "goes with classification"),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict, why: str) -> None:
    given = spec(**fields)
    facts = DataFacts((1, 8, 8), classes=0) if "data" in fields else FACTS
    with pytest.raises(SpecRejected, match=why):
        build_task_model(build_task(given.task, given.loss, facts), given.model, 0)


def test_a_detector_of_torchvisions_is_taken_as_it_is() -> None:
    kwargs = {"weights_backbone": None}
    model = ModelSpec.model_validate(
        {"name": "torchvision.models.detection:ssdlite320_mobilenet_v3_large", "kwargs": kwargs}
    )
    task = build_task(TaskSpec(name="detection"), "cross_entropy", FACTS)
    module = build_task_model(task, model, 0)
    data = task.collate([(torch.rand(3, 24, 20), {"boxes": [[1, 2, 9, 9]], "labels": [1]})] * 2)
    assert task.loss(module, data).weight == 2


def test_a_box_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="x2 above x1"):
        Detection().collate([(torch.zeros(1, 8, 8), {"boxes": [[3, 3, 2, 5]], "labels": [1]})])
