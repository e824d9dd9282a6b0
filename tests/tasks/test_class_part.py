"""A part of the classes is evaluated: the metrics of its examples, among its classes, whatever else a spec says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from tests.runtime.runs import finished, spec
from tests.tasks.test_metrics import measured
from trainers import TrainSpec
from trainers.data.datasets import open_dataset
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected
from trainers.models.registry import build_model
from trainers.spec import ModelSpec
from trainers.spec.recipe import explain
from trainers.tasks.classification import Classification
from trainers.training.setup import preflight

PART = (7, 2, 3)


def masked(logits: Tensor, classes: tuple[int, ...]) -> Tensor:
    """As the paper has it: no other class can be the answer, and none has a probability."""
    others = torch.ones(logits.shape[1], dtype=torch.bool)
    others[list(classes)] = False
    return logits.masked_fill(others, -torch.inf)


@pytest.mark.parametrize("size", [1, 7, 200])
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1}, {"class_weight": [0.5] * 30}, {"loss": "logistic"}], ids=str
)
def test_metrics_are_those_of_masked_logits(options: dict[str, Any], size: int) -> None:
    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(4, 30), torch.randn(200, 4), torch.randint(30, (200,))
    task = Classification(**options)
    task.facts = DataFacts((4,), classes=30)
    task.check(task.facts)
    for classes in (PART, tuple(range(5, 26))):
        task.evaluate_only(classes)
        with torch.no_grad():
            found = measured(task, model, (x, y), size)
            mine = torch.isin(y, torch.tensor(classes))
            logits, labels = masked(model(x[mine]), classes), y[mine]
        assert found["accuracy"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
        if options != {"loss": "logistic"}:  # otherwise the units of the others are left out
            assert found["loss"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
        else:
            units = F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 30).float(), reduction="none")
            assert found["loss"] == pytest.approx(float(units[:, sorted(classes)].sum(1).mean()), rel=1e-5)
        assert ("top5_accuracy" in found) == (len(classes) >= 20)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"evaluate": {"classes": [3, -1]}}, "-1 is no class; they are numbered from 0 on"),
        ({"evaluate": {"classes": [3, 4, 3]}}, "3 is named twice"),
        ({"evaluate": {"classes": [3]}}, "at least 2"),
        ({"evaluate": {"classes": PART}, "task": "regression"}, "classes is for task: classification, and regression"),
        ({"evaluate": {"classes": PART}, "task": "mine:Task"}, "mine:Task measures what its `metrics` says; leave it"),
    ],
)
def test_what_the_spec_refuses(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        TrainSpec.model_validate(fields)


def test_a_class_that_is_none_is_refused_before_the_run() -> None:
    with pytest.raises(SpecRejected, match=r"evaluate.classes: 10 is no class of these data, which have 10: 0 to 9"):
        preflight(spec(evaluate={"classes": [1, 10]}))


def test_explain_and_the_log_tell_it() -> None:
    assert explain(spec(evaluate={"classes": PART}), 203).quantities["evaluated"].value == "3 classes: 7, 2, 3"
    assert "evaluated" not in explain(spec(), 203).quantities
    task = Classification()
    task.facts = DataFacts((4,), classes=30)
    task.evaluate_only(range(15))
    assert task.told == ("15 of the 30 classes are evaluated: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...",)


def by_hand(folder: Path, train: TrainSpec) -> dict[str, float]:
    """Metrics of the finished model on the test set."""
    model = build_model(ModelSpec(name=train.model.name), 10, (1, 8, 8), 0).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    with open_dataset(train.data, train.seed) as data, torch.no_grad():
        (batch,) = data.test_batches(1000)
        mine = torch.isin(batch.labels, torch.tensor(PART))
        logits, labels = masked(model(batch.images[mine]), PART), batch.labels[mine]
    right = float((logits.argmax(1) == labels).float().mean())
    return {"test_accuracy": right, "test_loss": float(F.cross_entropy(logits, labels))}


RUNS: dict[str, dict[str, Any]] = {
    "sync": {"ema": {"decay": 0.9}, "task": {"name": "classification", "kwargs": {"label_smoothing": 0.1}}},
    "downpour": {"task": {"name": "classification", "kwargs": {"class_weight": "balanced"}}},
    "mixed": {},
    "hybrid": {"model": "lenet5"},
    "parallel_sgd": {},
    "diloco": {},
    "easgd": {},
    "admm": {},
}


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("algorithm", list(RUNS))
def test_every_algorithm_is_evaluated_so(algorithm: str, tmp_path: Path) -> None:
    train = spec(algorithm=algorithm, workers=2, evaluate={"classes": PART}, epochs=1, **RUNS[algorithm])
    run = finished(f"part-{algorithm}", train, tmp_path / "run")
    (result,) = run.of("result")
    expected = by_hand(tmp_path / "run", train)
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    if algorithm != "sync":
        return
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    more = train.model_copy(
        update={"epochs": 2, "checkpoint": train.checkpoint.model_copy(update={"resume": str(kept)})}
    )
    (result,) = finished("part-resumed", more, tmp_path / "more").of("result")
    expected = by_hand(tmp_path / "more", more)
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_a_part_of_which_the_test_set_has_nothing_is_told(tmp_path: Path) -> None:
    data = "tests.tasks.usersets:one_class_to_test"
    train = TrainSpec.model_validate({"data": data, "model": "mlp", "epochs": 1, "evaluate": {"classes": [1, 2]}})
    run = finished("part-empty", train, tmp_path)
    assert run.events[-1].data["state"] == "FAILED"
    assert "evaluate.classes: no test example is of one of these" in run.events[-1].data["message"]
