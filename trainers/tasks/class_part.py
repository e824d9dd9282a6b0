"""Evaluation on a part of the classes that a model knows (paper 4, section 5.3, ImageNet-5k)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainers.data.batches import Data, mapped

SHOWN = 12
"""Classes that are told one by one."""


class ClassPart:
    """Some of the classes: which examples are theirs, and what a model says of them alone."""

    def __init__(self, classes: Sequence[int], num_classes: int) -> None:
        """Raises ValueError where one is no class of the data."""
        if strange := [label for label in classes if label >= num_classes]:
            there = f"{num_classes}: 0 to {num_classes - 1}"
            raise ValueError(f"{strange[0]} is no class of these data, which have {there}; leave it out")
        self.classes = torch.tensor(sorted(classes))  # (part,)
        places = torch.full((num_classes,), -1)
        places[self.classes] = torch.arange(len(self.classes))
        self.places = places  # (classes,): of a class in the part, or -1

    @property
    def told(self) -> str:
        """What the log of a run says of it."""
        labels, count = self.classes.tolist(), len(self.places)
        more = ", ..." if len(labels) > SHOWN else ""
        return f"{len(labels)} of the {count} classes are evaluated: {', '.join(map(str, labels[:SHOWN]))}{more}"

    def examples(self, data: Data) -> Data:
        """Of a minibatch (inputs, labels (B,)), those of these classes, with their places in the part as labels."""
        labels = self.places.to(data[1].device)[data[1]]
        kept = labels >= 0
        return mapped(data[0], lambda tensor: tensor[kept]), labels[kept]

    def logits(self, logits: Tensor) -> Tensor:
        """(B, classes) -> (B, part): a class that is left out is as one whose logit is masked."""
        return logits[:, self.classes.to(logits.device)]
