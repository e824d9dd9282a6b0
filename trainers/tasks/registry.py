"""Tasks by name, and the model of a task."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainers import user_code
from trainers.data.batches import Collate
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.models.config import ModelSpec
from trainers.models.names import LossName
from trainers.models.registry import build_model_for
from trainers.tasks.base import Task
from trainers.tasks.classification import Classification
from trainers.tasks.config import TaskSpec
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.regression import Regression

OWN = "task"
"""The name of a task's own model in a spec."""

_TASKS: dict[str, Callable[..., Task]] = {
    "classification": Classification,
    "regression": Regression,
    "language_model": LanguageModel,
}


def build_task(spec: TaskSpec, loss: LossName, facts: DataFacts) -> Task:
    """The task of a spec, for data that look like this.

    Args:
        loss: of `classification`.

    Raises SpecRejected and UserCodeFailed.
    """
    if user_code.is_user_name(spec.name):
        task = user_code.call(spec.name, **spec.kwargs)
        if not isinstance(task, Task):
            raise UserCodeFailed(f"{spec.name} is no task; make it a subclass of trainers.Task")
    else:
        arguments: dict[str, Any] = {"loss": loss} if spec.name == "classification" else {}
        try:
            task = _TASKS[spec.name](**arguments, **spec.kwargs)
        except (TypeError, ValueError) as error:
            raise SpecRejected(f"task.kwargs: {error}") from error
    task.facts = facts
    try:
        task.check(facts)
    except ValueError as error:
        raise SpecRejected(f"task: {error}") from error
    return task


def collate_of(spec: TaskSpec, loss: LossName, facts: DataFacts) -> Collate:
    """What makes minibatches of examples, for a loader process, to which no task of the user's need be sent."""
    return build_task(spec, loss, facts).collate


def collates(task: Task) -> bool:
    """Whether the task makes minibatches of examples in a way of its own."""
    return type(task).collate is not Task.collate


def build_task_model(task: Task, model: ModelSpec, seed: int) -> nn.Module:
    """The model of a spec for a task, with its initial weights, as `build_model_for` describes it.

    Raises SpecRejected and UserCodeFailed.
    """
    if model.name == OWN:
        return _own(task, seed)
    return build_model_for(model, task.facts, seed)


def _own(task: Task, seed: int) -> nn.Module:
    name = type(task).__name__
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = task.model(task.facts)
        except NotImplementedError as error:
            raise SpecRejected(f"model: {error}; name one, or define `model` of the task") from error
        except Exception as error:
            raise user_code.failed(f"the model of {name}", error) from error
    if not isinstance(module, nn.Module):
        raise UserCodeFailed(f"the model of {name} is a {type(module).__name__}; it must be a torch.nn.Module")
    return module.cpu().train()
