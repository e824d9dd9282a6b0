"""The interface of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from torch import nn

from trainers.data.batches import Data
from trainers.data.facts import DataFacts
from trainers.data.records.objects import stacked
from trainers.errors import UserCodeFailed
from trainers.models.objective import Model, Objective
from trainers.tasks.measures import Mean, Measure


class Task(Objective):
    """What is learned: the loss of a minibatch, its metrics, and on request the model.

    A task of your own is a subclass, named `module:Class` in the spec; `task.kwargs` are its constructor's arguments.
    `loss` must be defined, the rest has defaults. `data` is what the dataset gives, as tensors with a row an example.
    """

    headline: ClassVar[str] = "loss"
    """The metric by which runs are compared."""
    higher_is_better: ClassVar[bool] = False
    """Of the headline."""
    told: tuple[str, ...] = ()
    """What the log of a run says of it, in sentences without their ends."""
    facts: DataFacts
    """What the data looks like. It is set before any method is called."""

    def check(self, facts: DataFacts) -> None:  # most tasks of users take what they get
        """Refuse data that the task cannot learn from.

        Raises:
            ValueError: Says what would do.
        """

    def collate(self, examples: list[Any]) -> Data:
        """A minibatch of single examples, where the dataset gives such. By default tensors, arrays and numbers are
        stacked, also those in dicts and tuples, as torch's `default_collate` does. The loader processes call it."""
        return stacked(examples)

    def model(self, facts: DataFacts) -> nn.Module:
        """The task's own model, which `model: task` asks for. Its weights may be drawn from torch's generator, which is
        seeded from the spec."""
        raise NotImplementedError(f"{type(self).__name__} has no model of its own")

    @property
    def hugging_face_head(self) -> str | None:
        """What a model of transformers is to give: the end of a class' name, as `CausalLM` of `AutoModelForCausalLM`;
        empty: what its configuration says. None: the task takes none of them by name."""
        return None

    def metrics(self, model: Model, data: Data) -> Mapping[str, Measure]:
        """What is measured on a minibatch that is held out, by name; added up over all of them. `loss` is one of
        them."""
        loss = self.loss(model, data)
        return {"loss": Mean(float(loss.total), loss.weight)}

    def chance_loss(self) -> float:
        """The mean loss of a model that knows nothing of the inputs; 0 where nobody can say."""
        return 0.0


def measured(task: Task, model: Model, data: Data) -> Mapping[str, Measure]:
    """What `metrics` of a task gives. Raises UserCodeFailed where that is anything else than measures by name."""
    found: Any = task.metrics(model, data)
    if not isinstance(found, Mapping):
        what = f"a {type(found).__name__}"
    elif others := [name for name, value in found.items() if not isinstance(value, Measure)]:
        what = f"a {type(found[others[0]]).__name__} as {others[0]!r}"
    else:
        return found
    raise UserCodeFailed(
        f"metrics of {type(task).__name__} gives {what}; it must give measures by name, as in "
        "{'loss': Mean(total, weight)}"
    )


def check_headline(task: Task, names: Iterable[str]) -> None:
    """Raises UserCodeFailed where the headline is none of the metrics that the task gives, unless it gives none."""
    if (given := sorted(names)) and task.headline not in given:
        raise UserCodeFailed(
            f"the headline of {type(task).__name__} is {task.headline!r}, which its metrics do not have; "
            f"they have {', '.join(given)}"
        )
