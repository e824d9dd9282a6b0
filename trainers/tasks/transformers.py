"""A model of transformers with its own loss."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.models.objective import Loss, Model
from trainers.tasks.base import Task
from trainers.tasks.measures import Mean, Measure, Perplexity

IGNORED = -100
"""A label that does not count."""


class Transformers(Task):
    """The loss is the one that the model's own forward pass returns.

    The data are dicts by the names of its arguments, `labels` among them. A model returns the mean over its units, so
    the sum is that times how many they are: the labels of tokens or pixels that are not -100 (of a causal language
    model those from the second on, since each predicts the next), and otherwise the rows.
    """

    def __init__(self, head: str = "") -> None:
        """head: The end of the class' name, as `CausalLM` of `AutoModelForCausalLM`; by default the class that the
        configuration names."""
        self.head = head

    @property
    def hugging_face_head(self) -> str:
        return self.head

    def check(self, facts: DataFacts) -> None:
        if facts.vocabulary:
            raise ValueError(
                "transformers needs dicts by the names of the model's arguments; take language_model for text"
            )

    def loss(self, model: Model, data: Data) -> Loss:
        return self._loss(model, data, self._outputs(model, data))

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        outputs = self._outputs(model, data)
        loss, kind = self._loss(model, data, outputs), type(model).__name__
        total = float(loss.total)
        found: dict[str, Measure] = {"loss": Mean(total, loss.weight)}
        if _is_causal(model) or kind.endswith("ForMaskedLM"):
            found["perplexity"] = Perplexity(total, loss.weight)
        labels: Tensor = data["labels"]
        if kind.endswith("Classification") and not labels.is_floating_point():
            counted = labels != IGNORED
            right = (outputs.logits.argmax(-1) == labels) & counted
            found["accuracy"] = Mean(int(right.sum()), int(counted.sum()))
        return found

    def _outputs(self, model: Model, data: Data) -> Any:
        if not isinstance(data, Mapping) or "labels" not in data:
            raise ValueError("the data must be a dict by the names of the model's arguments, with `labels`")
        outputs = model(**{name: _taken(value) for name, value in data.items()})
        if not isinstance(getattr(outputs, "loss", None), Tensor):
            raise ValueError(f"{type(model).__name__} returns no loss for labels; take another task.kwargs.head")
        return outputs

    def _loss(self, model: Model, data: Data, outputs: Any) -> Loss:
        units = self._units(model, data["labels"])
        if not units:  # a mean over none is not a number
            return Loss(outputs.logits.sum() * 0, 0)
        return Loss(outputs.loss * units, units)

    def _units(self, model: Model, labels: Tensor) -> int:
        if labels.is_floating_point():
            return len(labels)
        return int(((labels[:, 1:] if _is_causal(model) else labels) != IGNORED).sum())


def _is_causal(model: Model) -> bool:
    """Whether the model learns from each token the next one, and so shifts the labels itself."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def _taken(value: Tensor) -> Tensor:
    """Small integers, such as a mask in a byte, as indices."""
    return value.to(torch.int64) if value.dtype == torch.uint8 else value
