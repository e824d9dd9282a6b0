"""The section `task` of a spec. Imports no torch."""

import difflib
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.section import Section, known

TASKS: Mapping[str, str] = MappingProxyType(
    {
        "classification": "labels from images or vectors: cross entropy, or logistic units; accuracy",
        "regression": "numbers from images or vectors: mse, mae or huber; mean absolute error, R2",
        "language_model": "the next token of a text: cross entropy; perplexity",
        "segmentation": "a class for each pixel of an image: cross entropy; mean IoU, pixel accuracy",
        "detection": "boxes of objects in images: the model's own losses; mAP",
        "transformers": "whatever a model of transformers learns, with its own loss",
    }
)
"""Name and one line each."""

OPTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("label_smoothing", "class_weight"),
        "regression": ("loss",),
        "language_model": (),
        "segmentation": ("aux_weight", "class_weight"),
        "detection": (),
        "transformers": ("head",),
    }
)
"""What `task.kwargs` may hold."""

_DETECTED = ("map", "map_50", "map_75", "mar_100")
METRICS: Mapping[str, Mapping[str, Literal["max", "min"]]] = MappingProxyType(
    {
        "classification": {"accuracy": "max", "loss": "min", "top5_accuracy": "max"},
        "regression": {"loss": "min", "mae": "min", "r2": "max"},
        "language_model": {"loss": "min", "perplexity": "min", "bits_per_byte": "min", "bits_per_character": "min"},
        "segmentation": {"mean_iou": "max", "loss": "min", "pixel_accuracy": "max"},
        "detection": {**{f"{of}{name}": "max" for of in ("", "mask_") for name in _DETECTED}, "loss": "min"},
        "transformers": {"loss": "min", "perplexity": "min", "accuracy": "max"},
    }
)
"""What each task may measure, some of it for some data and models only, and whether more or less of it is better. First
comes the metric by which runs are compared."""

USUAL_MODEL: Mapping[str, str] = MappingProxyType(
    {"regression": "mlp", "language_model": "gpt", "segmentation": "unet", "detection": "task"}
)
"""The model of a spec that names none; `lenet5` for the others, and that of its own for a task of the user's."""


BALANCED = "balanced"
"""Class weights by how often each class is in the training set."""

Argument = bool | int | float | str | tuple[float, ...]


class TaskSpec(Section):
    """What is learned."""

    name: str = "classification"
    """`classification`, `regression`, `language_model`, `segmentation`, `detection`, `transformers`, or a
    subclass of `trainers.Task` of your own as `module:Class`."""

    kwargs: dict[str, Argument] = Field(default={})
    """Arguments passed on to the task: `label_smoothing` of `classification`, `class_weight` (`balanced`, or a number
    for each class) of that and of `segmentation`, `loss` (`mse`, `mae` or `huber`) of `regression`, `aux_weight` of
    `segmentation`, `head` of `transformers`."""

    def __hash__(self) -> int:
        """By its name. Pydantic copies a default that has no hash, with all in it, for each spec that is read."""
        return hash(self.name)

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name.startswith("hf:"):
            raise ValueError(f"{name} names a model; set that as model, and task: transformers for its own loss")
        return known(tuple(TASKS), name, "a task of your own")

    @field_validator("kwargs")
    @classmethod
    def _are_taken(cls, kwargs: dict[str, Argument], info: ValidationInfo) -> dict[str, Argument]:
        allowed = OPTIONS.get(info.data.get("name", ""))
        for name in kwargs if allowed is not None else ():
            if name not in (allowed or ()):
                near = ", ".join(difflib.get_close_matches(name, allowed or ()) or allowed or ("none",))
                raise ValueError(f"{info.data['name']} takes no {name!r}; its options: {near}")
        if allowed is not None and "class_weight" in kwargs:
            _check_weights(kwargs["class_weight"])
        return kwargs

    @property
    def counts_classes(self) -> bool:
        """Whether the task must be told how often each class is in the training set."""
        return self.name in OPTIONS and self.kwargs.get("class_weight") == BALANCED

    @property
    def usual_model(self) -> str:
        """The model of a spec that names none."""
        return USUAL_MODEL.get(self.name, "task" if ":" in self.name else "lenet5")


def _check_weights(weights: Argument) -> None:
    """Raises ValueError where they are no class weights."""
    if weights == BALANCED:
        return
    if not isinstance(weights, tuple) or any(not math.isfinite(w) or w < 0 for w in weights) or not any(weights):
        raise ValueError(
            f"class_weight is {list(weights) if isinstance(weights, tuple) else weights}; give {BALANCED}, or a list "
            "with a number for each class, none below 0 and not all 0"
        )
