"""What is tried before a run: the model on the first examples, by the loss of the task and by nothing else."""

from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn import functional as F  # noqa: N812

from trainers import Loss, Mean, Task
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.spec import TrainSpec
from trainers.training.setup import preflight

HERE, MODELS = "tests.training.test_preflight", "tests.models.usermodels"
DIGITS = {"name": "digits", "limit": 20}


class Graded(Task):
    """A grade for rows of words, of which some are padding; the model is called with both."""

    def loss(self, model: Any, data: Any) -> Loss:
        grades = data["grade"]
        return Loss(F.cross_entropy(model(data["words"], data["lengths"]), grades, reduction="sum"), len(grades))


class MeanLoss(Task):
    """The mean, as plain PyTorch has it."""

    def loss(self, model: Any, data: Any) -> Any:
        return F.cross_entropy(model(data[0]), data[1])


class LossByExample(Task):
    def loss(self, model: Any, data: Any) -> Loss:
        return Loss(F.cross_entropy(model(data[0]), data[1], reduction="none"), len(data[1]))


class Summed(Task):
    def loss(self, model: Any, data: Any) -> Loss:
        return Loss(F.cross_entropy(model(data[0]), data[1], reduction="sum"), len(data[1]))


class BareNumbers(Summed):
    def metrics(self, model: Any, data: Any) -> Any:
        return {"largest": float(model(data[0]).max())}


class OneMean(Summed):
    def metrics(self, model: Any, data: Any) -> Any:
        return Mean(float(model(data[0]).sum()), len(data[0]))


class NeedsMany(Summed):
    """As the area under a curve does."""

    def metrics(self, model: Any, data: Any) -> Any:
        if len(data[0]) < 4:
            raise ValueError("too few examples")
        return super().metrics(model, data)


class Headless(Summed):
    headline = "mystery"


def graded(root: str) -> tuple[dict[str, np.ndarray], ...]:
    def half(count: int) -> dict[str, np.ndarray]:
        rows = np.arange(count)
        return {"words": rows[:, None] % 40 + np.zeros((1, 6), int), "lengths": rows % 5 + 2, "grade": rows % 3}

    return half(12), half(4)


class Labelled(list):  # type: ignore[type-arg]
    """Rows of tokens with a label, and what the set says of itself."""

    vocabulary, classes = 40, 2


def tokens(root: str) -> tuple[Labelled, Labelled]:
    rows = Labelled((np.arange(6) + i, i % 2) for i in range(8))
    return rows, rows


def mean_of_words(num_classes: int, vocabulary: int) -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(vocabulary, 4), nn.Linear(4, num_classes))


@pytest.mark.parametrize(
    "fields",
    [
        {"task": "tests.equivalence.usertasks:Pairs", "model": f"{MODELS}:embedding", "data": DIGITS},
        {"task": f"{HERE}:Graded", "model": f"{MODELS}:Words", "data": f"{HERE}:graded"},
        {"model": f"{HERE}:mean_of_words", "data": {"name": f"{HERE}:tokens", "loader_processes": 0}},
        {"model": f"{MODELS}:linear", "data": DIGITS},
        {"task": f"{HERE}:NeedsMany", "model": f"{MODELS}:linear", "data": DIGITS},
    ],
    ids=["embeddings of images", "inputs by name", "labels of tokens", "logits", "metrics of many"],
)
def test_a_model_of_ones_own_need_only_fit_its_task(fields: dict) -> None:
    preflight(TrainSpec.model_validate(fields))


@pytest.mark.parametrize(
    ("fields", "error", "why"),
    [
        ({"model": f"{MODELS}:too_few_classes"}, SpecRejected, r"gives \(2, 9\) .* logits of shape \(2, 10\)"),
        ({"model": f"{MODELS}:broken"}, UserCodeFailed, r"IndexError: forgot the pooling\n(.*\n)*.*usermodels.py"),
        ({"model": f"{MODELS}:linear", "task": f"{HERE}:Graded"}, UserCodeFailed, r"Graded, on the first .* of digits"),
        ({"model": f"{MODELS}:too_narrow"}, UserCodeFailed, r"multiplied .*\n.*usermodels.py.*\n.*self.last\(narrow\)"),
    ],
)
def test_what_does_not_train_is_told_with_the_place(fields: dict, error: type[SpecRejected], why: str) -> None:
    with pytest.raises(SpecRejected, match=why) as caught:
        preflight(TrainSpec.model_validate({"data": DIGITS} | fields))
    assert caught.type is error


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ("MeanLoss", r"loss of MeanLoss gives a Tensor.* Loss\(total, weight\): the sum .* not their mean"),
        ("LossByExample", r"loss of LossByExample gives a Loss with a total of \(2,\)"),
        ("BareNumbers", r"metrics of BareNumbers gives a float as 'largest'.* Mean\(total, weight\)"),
        ("OneMean", r"metrics of OneMean gives a Mean; .* by name"),
        ("Headless", r"headline of Headless is 'mystery', which its metrics do not have; they have loss"),
    ],
)
def test_a_task_that_gives_something_else_is_named(task: str, why: str) -> None:
    with pytest.raises(UserCodeFailed, match=why):
        preflight(TrainSpec.model_validate({"task": f"{HERE}:{task}", "model": f"{MODELS}:linear", "data": DIGITS}))
