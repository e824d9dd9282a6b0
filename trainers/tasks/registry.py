"""Tasks by name, and the model of a task."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from trainers import user_code
from trainers.algorithms.config import AlgorithmConfig
from trainers.data.batches import Collate, Dataset
from trainers.data.facts import DataFacts
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.models.config import ModelSpec
from trainers.models.hugging_face import build_hugging_face, gives_logits
from trainers.models.losses import LabelLoss
from trainers.models.names import LossName, is_hugging_face
from trainers.models.objective import Supervised
from trainers.models.pixels import build_detector, build_pixel_model
from trainers.models.registry import build_model_for
from trainers.tasks.base import Task
from trainers.tasks.classification import Classification
from trainers.tasks.config import TaskSpec
from trainers.tasks.detection import Detection
from trainers.tasks.language_model import LanguageModel
from trainers.tasks.regression import Regression
from trainers.tasks.segmentation import Segmentation
from trainers.tasks.transformers import Transformers

OWN = "task"
"""The name of a task's own model in a spec."""

_TASKS: dict[str, Callable[..., Task]] = {
    "classification": Classification,
    "regression": Regression,
    "language_model": LanguageModel,
    "segmentation": Segmentation,
    "detection": Detection,
    "transformers": Transformers,
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


def task_for(spec: TaskSpec, loss: LossName, dataset: Dataset) -> Task:
    """`build_task` for a dataset, whose classes are counted where the task must know how often each is there."""
    facts = dataset.facts
    if spec.counts_classes:
        facts = replace(facts, class_counts=dataset.class_counts())
    return build_task(spec, loss, facts)


def collate_of(spec: TaskSpec, loss: LossName, facts: DataFacts) -> Collate:
    """What makes minibatches of examples, for a loader process, to which no task of the user's need be sent."""
    return build_task(spec, loss, facts).collate


def collates(task: Task) -> bool:
    """Whether the task makes minibatches of examples in a way of its own."""
    return type(task).collate is not Task.collate


def check_objective(task: Task, spec: TaskSpec, algorithm: AlgorithmConfig) -> None:
    """Raises SpecRejected where the algorithm takes a part of the loss into its own hands and cannot with this task."""
    needs, name = algorithm.traits.objective, algorithm.name
    if needs == "supervised" and not isinstance(task, Supervised):
        raise SpecRejected(
            f"algorithm: {name} calls layers itself, and the loss of task {spec.name} calls the model; "
            "make the task a subclass of trainers.Supervised as well, or take sync, or downpour without backprop"
        )
    is_plain = isinstance(task, LabelLoss) and not task.label_smoothing and task.class_weights is None
    if needs == "labels" and not is_plain:
        raise SpecRejected(
            f"algorithm: {name} divides the last layer's classes among workers, which needs task: classification "
            f"without label_smoothing and class_weight; take sync or downpour for {spec.name}"
        )


def build_task_model(task: Task, model: ModelSpec, seed: int) -> nn.Module:
    """The model of a spec for a task, with its initial weights, as `build_model_for` describes it.

    Raises SpecRejected and UserCodeFailed.
    """
    if model.name == OWN:
        return _own(task, seed)
    if is_hugging_face(model.name):
        return _of_hugging_face(task, model, seed)
    if isinstance(task, Transformers):
        raise SpecRejected(f"task: transformers trains a model of transformers, not {model.name}; set model: hf:<type>")
    if isinstance(task, Detection):
        return build_detector(model, task.facts, seed)
    if isinstance(task, Segmentation):
        return build_pixel_model(model, task.facts, seed)
    return build_model_for(model, task.facts, seed)


def _of_hugging_face(task: Task, model: ModelSpec, seed: int) -> nn.Module:
    head = task.hugging_face_head
    if head is None:
        raise SpecRejected(
            f"model: {model.name} goes with classification, language_model, segmentation, or with task: transformers, "
            f"not with {type(task).__name__}; build it in a function of your own"
        )
    module = build_hugging_face(model, head, task.facts, seed)
    return module if isinstance(task, Transformers) else gives_logits(module)


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
