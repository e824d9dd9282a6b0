"""The section `task` of a spec. Imports no torch."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

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
        "classification": ("label_smoothing",),
        "regression": ("loss",),
        "language_model": (),
        "segmentation": ("aux_weight",),
        "detection": (),
        "transformers": ("head",),
    }
)
"""What `task.kwargs` may hold."""

USUAL_MODEL: Mapping[str, str] = MappingProxyType(
    {"regression": "mlp", "language_model": "gpt", "segmentation": "unet", "detection": "task"}
)
"""The model of a spec that names none; `lenet5` for the others, and that of its own for a task of the user's."""


class TaskSpec(Section):
    """What is learned."""

    name: str = "classification"
    """`classification`, `regression`, `language_model`, `segmentation`, `detection`, `transformers`, or a
    subclass of `trainers.Task` of your own as `module:Class`."""

    kwargs: dict[str, bool | int | float | str] = Field(default={})
    """Arguments passed on to the task: `label_smoothing` of `classification`, `loss` (`mse`, `mae` or `huber`) of
    `regression`, `aux_weight` of `segmentation`, `head` of `transformers`."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name.startswith("hf:"):
            raise ValueError(f"{name} names a model; set that as model, and task: transformers for its own loss")
        return known(tuple(TASKS), name, "a task of your own")

    @field_validator("kwargs")
    @classmethod
    def _are_taken(
        cls, kwargs: dict[str, bool | int | float | str], info: ValidationInfo
    ) -> dict[str, bool | int | float | str]:
        allowed = OPTIONS.get(info.data.get("name", ""))
        for name in kwargs if allowed is not None else ():
            if name not in (allowed or ()):
                near = ", ".join(difflib.get_close_matches(name, allowed or ()) or allowed or ("none",))
                raise ValueError(f"{info.data['name']} takes no {name!r}; its options: {near}")
        return kwargs

    @property
    def usual_model(self) -> str:
        """The model of a spec that names none."""
        return USUAL_MODEL.get(self.name, "task" if ":" in self.name else "lenet5")
