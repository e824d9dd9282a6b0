"""What each class weighs: as torch's cross entropy has it, and by how often each class is in the training set."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import Run
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.errors import SpecRejected
from trainers.spec import DataSpec, TrainSpec
from trainers.tasks.class_weights import weigh_classes
from trainers.training.setup import set_up

BALANCED = {"name": "classification", "kwargs": {"class_weight": "balanced"}}


def balanced(labels: np.ndarray) -> np.ndarray:
    """As scikit-learn's `compute_class_weight("balanced")`."""
    counts = np.bincount(labels)
    return len(labels) / (len(counts) * counts)


def spec(**fields: Any) -> TrainSpec:
    return TrainSpec.model_validate(
        {"task": BALANCED, "model": "mlp", "data": {"name": "digits", "limit": 203}} | fields
    )


def folders(root: Path) -> dict[str, Any]:
    for half, count in (("train", 5), ("val", 2)):
        for i in range(count):
            path = root / half / "ab"[i % 4 == 0] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 0)).save(path)
    return {"name": "image_folder", "root": str(root), "resize": 8, "loader_processes": 0}


def table(root: Path) -> dict[str, Any]:
    rows = "\n".join(f"{i},{'ab'[i % 4 == 0]}" for i in range(40))
    (root / "t.csv").write_text(f"x,kind\n{rows}\n")
    return {"name": "csv", "root": str(root / "t.csv"), "target": "kind"}


def test_the_mean_over_a_minibatch_is_that_of_torch() -> None:
    given = [0.2, 1.0, 3.7]
    task = Run(spec(data="tests.tasks.usersets:small_images", task={"name": "classification", "kwargs": {
        "class_weight": given, "label_smoothing": 0.2,
    }})).task  # fmt: skip
    logits, labels = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 3
    loss = task.loss_of(logits, (None, labels))  # type: ignore[attr-defined]
    expected = F.cross_entropy(logits, labels, torch.tensor(given), label_smoothing=0.2)
    torch.testing.assert_close(loss.total / loss.weight, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["digits", "image_folder", "csv"])
@pytest.mark.parametrize("opened", [open_dataset, open_partitioned])
def test_balanced_counts_what_is_trained(kind: str, opened: Any, tmp_path: Path) -> None:
    makers = {"image_folder": folders, "csv": table}
    data = makers[kind](tmp_path) if kind in makers else {"name": kind}
    given = DataSpec.model_validate(data | {"limit": 4 if kind == "image_folder" else 30})
    with opened(given, 0) as dataset:
        plan = [(0, np.arange(dataset.num_train))]
        (batch,) = dataset.batches(plan)
        counts = dataset.class_counts()
        assert list(counts) == torch.bincount(batch.labels).tolist()
    found, told = weigh_classes("balanced", len(counts), replace(dataset.facts, class_counts=counts))
    assert found is not None
    ratio = found.of(torch.zeros(1)).numpy() / balanced(batch.labels.numpy())
    assert np.allclose(ratio, ratio[0], rtol=1e-6)  # a factor that is divided out again
    assert told[0].startswith("its classes weigh ")


def test_the_log_tells_them() -> None:
    setup = set_up(spec(), None)
    weights = balanced(next(iter(setup.dataset.batches([(0, np.arange(203))]))).labels.numpy())
    assert f"its classes weigh {weights[0]:.4g}, {weights[1]:.4g}," in setup.run_layout().data[-1]


def test_pixels_are_counted_without_those_that_do_not_count() -> None:
    run = Run(spec(data="tests.tasks.usersets:shapes_in_images", model={"name": "unet", "kwargs": {"width": 4}},
                   task={"name": "segmentation", "kwargs": {"class_weight": "balanced"}}))  # fmt: skip
    images, classes = next(iter(run.dataset.batches([(0, np.arange(46))]))).data
    assert run.dataset.class_counts() == tuple(torch.bincount(classes[classes != 255].long()).tolist())
    logits = torch.randn(46, 3, 10, 9, generator=torch.Generator().manual_seed(0))
    loss = run.task.loss_of(logits, (images, classes))  # type: ignore[attr-defined]
    weight = torch.tensor(balanced(classes[classes != 255].numpy())).float()
    expected = F.cross_entropy(logits, classes.long(), weight, ignore_index=255)
    torch.testing.assert_close(loss.total / loss.weight, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("weights", ["even", [], [1, -1], [0, 0], [1.0, float("nan")], 3])
def test_what_are_no_weights_is_refused(weights: Any) -> None:
    with pytest.raises(ValidationError, match=r"class_weight is .*; give balanced, or a list"):
        spec(task={"name": "classification", "kwargs": {"class_weight": weights}})


def test_a_set_that_does_not_tell_its_labels_is_refused() -> None:
    with pytest.raises(SpecRejected, match="an attribute `targets`"):
        set_up(spec(data={"name": "tests.data.ownsets:bad", "root": "none", "loader_processes": 0}), None)
