"""Metrics are the same however the test set is cut into batches, and are what a user would compute."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainers import Mean, Measure, Sum, Task
from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.models.objective import Loss, Objective
from trainers.tasks.classification import Classification
from trainers.tasks.language_model import IGNORED, LanguageModel
from trainers.tasks.regression import Regression


def measured(task: Task, model: nn.Module, data: tuple[Any, ...], size: int) -> dict[str, float]:
    """Over batches of so many examples, as the evaluator adds them up."""
    found: dict[str, Measure] = {}
    for start in range(0, len(data[0]), size):
        part = tuple(column[start : start + size] for column in data)
        for name, measure in task.metrics(model, part).items():
            found[name] = found[name] + measure if name in found else measure
    return {name: measure.value for name, measure in found.items()}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("size", [1, 7, 50])
def test_classification(size: int) -> None:
    torch.manual_seed(0)
    model, task = nn.Linear(4, 30), Classification(label_smoothing=0.1)
    x, y = torch.randn(50, 4), torch.randint(30, (50,))
    found, logits = measured(task, model, (x, y), size), model(x)
    assert found["loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, y))), "without smoothing"
    assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == y).float().mean()))
    assert found["top5_accuracy"] == pytest.approx(
        float(np.mean([y[i] in logits[i].topk(5).indices for i in range(50)]))
    )


@pytest.mark.parametrize("size", [1, 7, 50])
def test_regression(size: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(50, 3)
    y = x @ torch.randn(3, 2) + 5
    found, outputs = measured(Regression(), model, (x, y), size), model(x)
    assert found["loss"] == pytest.approx(float(nn.functional.mse_loss(outputs, y)), rel=1e-5)
    assert found["mae"] == pytest.approx(float((outputs - y).abs().mean()), rel=1e-5)
    variance = float(((y - y.mean()) ** 2).sum())
    assert found["r2"] == pytest.approx(1 - float(((outputs - y) ** 2).sum()) / variance, rel=1e-4)


def test_regression_says_what_becomes_of_labels() -> None:
    with pytest.raises(ValueError, match=r"these data have labels of 3 classes; give whole numbers as float32"):
        Regression().check(DataFacts((4,), classes=3))
    with pytest.raises(ValueError, match=r"and these data have none"):
        Regression().check(DataFacts((4,)))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_language_model_counts_only_the_tokens_that_count(size: int) -> None:
    torch.manual_seed(0)
    task = LanguageModel()
    task.facts = DataFacts((6,), vocabulary=11, unit="byte", padded=True)
    model = nn.Embedding(11, 11)
    tokens, targets = torch.randint(11, (8, 6)), torch.randint(11, (8, 6))
    targets[::2, 4:] = IGNORED
    found = measured(task, model, (tokens, targets), size)
    loss = float(nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=IGNORED))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-5)
    assert task.weight_per_example is None
    assert task.chance_loss() == pytest.approx(math.log(11))


def test_measures_add_up() -> None:
    assert (Mean(3, 2) + Mean(1, 2)).value == 1
    assert (Sum(3) + Sum(4)).value == 7
    assert math.isnan(Mean(0, 0).value)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Classification(label_smoothing=1.0), "at least 0 and below 1"),
        (lambda: Classification("logistic", 0.1), "leave one of them out"),
        (lambda: Regression("l2"), "take mse, mae, huber"),
    ],
)
def test_options_that_will_not_do(make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_another_loss_is_neither_weighed_nor_traced_as_the_one_that_it_replaces() -> None:
    class Weighted(LanguageModel):
        def loss_of(self, outputs: Tensor, data: Data) -> Loss:
            return Loss(super().loss_of(outputs, data).total, 0.5 * len(data[1]))

    class Named(LanguageModel):
        pass

    assert LanguageModel.is_traceable
    assert Named.is_traceable
    assert Named.weigh is LanguageModel.weigh
    assert not Weighted.is_traceable
    assert Weighted.weigh is Objective.weigh
