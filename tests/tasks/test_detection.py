"""Boxes of objects: COCO's figures of the whole set, and what is refused."""

import pytest
import torch

from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.spec import TrainSpec
from trainers.tasks.config import TaskSpec
from trainers.tasks.detection import NAMES, Detection
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
    assert {name: found[name] for name in NAMES} == pytest.approx({name: float(theirs[name]) for name in NAMES})
    assert 0 < found["map"] < 1
    assert not model.training


def test_an_image_in_which_nothing_is_found_counts() -> None:
    task = build_task(TaskSpec(name="detection"), "cross_entropy", FACTS)
    data = task.collate([(torch.rand(1, 24, 20), {"boxes": [[1, 2, 9, 9]], "labels": [1]})] * 2)

    class Blind(torch.nn.Module):
        """Finds nothing."""

        def forward(self, images: list, targets: list | None = None) -> object:
            nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0).long()}
            return {"loss": images[0].mean()} if self.training else [nothing for _ in images]

    found = task.metrics(Blind().eval(), data)
    assert {name: found[name].value for name in NAMES} == dict.fromkeys(NAMES, 0.0)


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
