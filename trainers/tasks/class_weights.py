"""What each class weighs in the loss of a task."""

from collections.abc import Sequence

from trainers.data.facts import DataFacts
from trainers.models.losses import ClassWeights
from trainers.tasks.config import BALANCED

GivenWeights = str | Sequence[float] | None
"""`balanced`, a number for each class, or nothing."""

SHOWN = 8
"""Weights that are told."""


def weigh_classes(
    given: GivenWeights, num_classes: int, facts: DataFacts
) -> tuple[ClassWeights | None, tuple[str, ...]]:
    """The weights of the classes, and what is told of them. None: all weigh the same.

    `balanced` divides all training examples evenly among the classes that occur, as scikit-learn does: one of n
    examples of C classes weighs n / (C times the examples of its class).

    Raises:
        ValueError: They are not as many as the classes, or the set does not tell how often each class is there.
    """
    if given is None:
        return None, ()
    if given == BALANCED:
        counts = facts.class_counts
        if not any(counts):
            raise ValueError(
                "class_weight: balanced needs to know how often each class is in the training set, and these data do "
                "not tell; give the training set an attribute `targets` (labels), or give the weights as a list"
            )
        occur = sum(map(bool, counts))
        weights = [sum(counts) / (occur * count) if count else 0.0 for count in counts]
    else:
        weights = list(map(float, given))
    if len(weights) != num_classes:
        raise ValueError(f"class_weight has {len(weights)} numbers, and the data {num_classes} classes; give as many")
    more = ", ..." if num_classes > SHOWN else ""
    return ClassWeights(weights), (f"its classes weigh {', '.join(f'{w:.4g}' for w in weights[:SHOWN])}{more}",)
