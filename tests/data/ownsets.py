"""Datasets of a user's own whose examples are anything, and tasks for them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from trainers import Loss, Mean, Task

Example = dict[str, Any]


class Sentences:
    """Words of 2 to 5 numbers each, with what is to be learned of them; some of it is drawn anew each time."""

    def __init__(self, count: int, of_one_length: bool = False) -> None:
        self.count, self.of_one_length = count, of_one_length
        self.not_picklable = lambda i: 2 + i % 4

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Example:
        length = 3 if self.of_one_length else self.not_picklable(i)
        noise = torch.rand(1).item() + np.random.rand() + random.random()
        words = np.arange(length) / 4 + i / 50
        return {"words": words, "about": {"noise": noise / 9, "length": length}, "y": float(np.sin(i))}


def sentences(root: str) -> tuple[Sentences, Sentences]:
    return Sentences(41), Sentences(9)


def even_sentences(root: str) -> tuple[Sentences, Sentences]:
    return Sentences(41, of_one_length=True), Sentences(9, of_one_length=True)


BAD = {
    "raises": {4, 11, 12, 30},
    "nan": {0, 7},
    "ragged": {5, 6},
    "label": {3},
    "most": set(range(41)) - {2, 20},
    "none": set(),
}


class Bad:
    """Rows with labels, some of which cannot be used."""

    classes = 3

    def __init__(self, count: int, kind: str) -> None:
        self.count, self.kind = count, kind

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        row, is_bad = torch.sin(torch.arange(4.0) + i) + torch.rand(4) / 9, i in BAD[self.kind]
        if is_bad and self.kind in ("raises", "most"):
            raise OSError(f"row {i} of the file is torn")
        if is_bad and self.kind == "nan":
            row[1] = torch.nan
        return (row[:2] if is_bad and self.kind == "ragged" else row), 7 if is_bad and self.kind == "label" else i % 3


def bad(root: str) -> tuple[Bad, Bad]:
    return Bad(41, root), Bad(9, root)


class Listed(list[Any]):
    """Examples in memory, with what the set says of itself."""

    def __init__(self, examples: list[Any], **about: Any) -> None:
        super().__init__(examples)
        self.__dict__.update(about)


def told(root: str) -> tuple[Any, Any]:
    """Sets that say what they are, by the name of the root."""
    draw = torch.Generator().manual_seed(0)
    vectors = [(torch.rand(3, generator=draw), i % 4) for i in range(8)]
    return {
        "vectors": (Listed(vectors, classes=["a", "b", "c", "d"]), vectors),
        "counted": (Listed(vectors, classes=4), vectors),
        "tokens": (Listed([(torch.arange(5), torch.arange(1, 6))] * 4, vocabulary=9), [(torch.arange(5), 1)] * 2),
        "numbers": ([(np.ones(3), 0.5)] * 4, [(np.ones(3), 0.5)] * 2),
        "several": ([(np.ones(3), np.ones((2, 2)))] * 4, [(np.ones(3), np.ones((2, 2)))] * 2),
        "plain": ([torch.ones(2, 3)] * 4, [torch.ones(2, 3)] * 2),
        "odd": (Listed(vectors, classes=object()), vectors),
    }[root]


class Means(Task):
    """The mean of each sentence's words, padded to the longest of its minibatch, makes y."""

    def model(self, facts: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def collate(self, examples: list[Example]) -> dict[str, Any]:
        words = nn.utils.rnn.pad_sequence([torch.tensor(e["words"]).float() for e in examples], batch_first=True)
        about = torch.tensor([[e["about"]["noise"], e["about"]["length"]] for e in examples])
        scale = 1 + 0.1 * torch.rand(1) + 0.1 * random.random() + 0.1 * np.random.rand()
        return {"words": words, "about": [about * scale], "y": torch.tensor([e["y"] for e in examples])}

    def loss(self, model: Any, data: dict[str, Any]) -> Loss:
        (about,) = data["about"]
        x = torch.cat([data["words"].sum(1, keepdim=True) / about[:, 1:], about], 1)
        return Loss(F.mse_loss(model(x)[:, 0], data["y"], reduction="sum"), len(x))

    def metrics(self, model: Any, data: dict[str, Any]) -> dict[str, Mean]:
        loss = self.loss(model, data)
        return {"loss": Mean(float(loss.total), loss.weight)}


class Broken(Means):
    """Its collate raises."""

    def collate(self, examples: list[Example]) -> Any:
        raise KeyError(examples[0]["nothing"])
