"""`train()` takes a task, a model and a dataset as objects of a notebook, and finds them again after every loss."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from service.errors import SpecInvalid
from service.spec import parse_spec
from trainers import ClusterInfo, Event, SpecRejected, TrainSpec, train, user_code
from trainers.given import Given
from trainers.runtime.code_package import naming, package_objects
from trainers.runtime.runs import runtime_environment

NOTEBOOK = """
import numpy as np
import torch
from torch import nn

from trainers import Loss, Mean, Task

class Huber(Task):
    headline = "far"

    def __init__(self, delta=1.0):
        self.delta = delta

    def loss(self, model, data):
        x, y = data
        return Loss(nn.functional.huber_loss(model(x), y, reduction="sum", delta=self.delta), len(y))

    def metrics(self, model, data):
        x, y = data
        loss = self.loss(model, data)
        return {"loss": Mean(float(loss.total), loss.weight), "far": Mean(float((model(x) - y).abs().sum()), len(y))}

def line(num_classes, in_features):
    return nn.Linear(in_features, 1)

def points(root):
    x = np.random.default_rng(0).normal(size=(240, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
    return (x[:200], y[:200]), (x[200:], y[200:])
"""


@pytest.fixture
def notebook() -> dict[str, Any]:
    """What a notebook has defined: in `__main__`, which no worker can import."""
    found: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, found)
    return found


def test_a_spec_names_what_was_given(notebook: dict[str, Any]) -> None:
    spec = TrainSpec.model_validate({"task": {"name": "m:Huber", "kwargs": {"delta": 2.0}}, "workers": 3})
    named, objects = naming(spec, task=notebook["Huber"], model=None, data=notebook["points"](""))
    assert (named.task.name, named.task.kwargs) == ("given_to_train:Huber", {"delta": 2.0})
    assert named.model.name == "task", "the model follows from the task"
    assert (named.data.name, named.workers.count) == ("given_to_train:tuple", 3)
    assert set(objects) == {"Huber", "tuple"}
    assert naming(spec, task=None, model=None, data=None) == (spec, {})


def test_each_call_makes_the_object_anew(notebook: dict[str, Any]) -> None:
    from ray import cloudpickle

    model = Given(cloudpickle.dumps(notebook["nn"].Linear(2, 1)))
    assert model() is not model()
    assert Given(cloudpickle.dumps(notebook["Huber"]))(delta=3.0).delta == 3.0


def test_what_will_not_do(notebook: dict[str, Any], tmp_path: Path) -> None:
    spec = TrainSpec.model_validate({"task": {"name": "m:Huber", "kwargs": {"delta": 2.0}}})
    with pytest.raises(SpecRejected, match="task is an object already; give its class"):
        naming(spec, task=notebook["Huber"](), model=None, data=None)
    named, _ = naming(TrainSpec(), task=notebook["Huber"], model=None, data=None)
    again = r"given_to_train:Huber was an object that train\(\) was given; give train\(\) that Huber again"
    with pytest.raises(SpecRejected, match=again):  # a resume by another process, say
        runtime_environment(named)
    with pytest.raises(SpecRejected, match=again):
        user_code.resolve(named.task.name)
    with pytest.raises(SpecInvalid, match=again):
        parse_spec(named.model_dump(mode="json"))


def test_what_cannot_be_sent() -> None:
    lock = threading.Lock()
    with pytest.raises(SpecRejected, match=r"read cannot be sent to the workers.*lock"):
        package_objects({"read": lambda root: lock})


@pytest.mark.long
def test_objects_survive_the_loss_of_a_worker_and_of_the_coordinator(
    cluster: ClusterInfo, notebook: dict[str, Any], tmp_path: Path
) -> None:
    killed: list[str] = []
    actors: list[dict[str, Any]] = []

    def kill(event: Event) -> None:
        if event.type == "actors":
            actors.append(event.data)
        for who, epoch in (("worker", 2), ("coordinator", 12)):
            if event.type == "epoch" and event.data["epoch"] >= epoch and who not in killed:
                killed.append(who)
                found = actors[-1]["workers"][1] if who == "worker" else actors[0]["coordinator"]
                os.kill(found["pid"], signal.SIGKILL)

    spec = TrainSpec.model_validate(
        {"workers": {"count": 2, "virtual": 3}, "batch": 5, "epochs": 60, "optimizer": {"name": "sgd", "lr": 0.1},
         "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}}
    )  # fmt: skip
    lines: list[str] = []

    def watch(event: Event) -> None:
        kill(event)
        if event.type == "log":
            lines.append(event.data["message"])

    given = {"task": notebook["Huber"](0.5), "model": notebook["line"], "data": notebook["points"]}
    result = train(spec, tmp_path / "shaken", watch, **given)
    assert killed == ["worker", "coordinator"]
    told = "trains given_to_train:Huber, given_to_train:line, given_to_train:points, as given to train()"
    assert any(told in line for line in lines)
    assert result.test_accuracy is None
    assert result.metrics["far"] < 0.05
