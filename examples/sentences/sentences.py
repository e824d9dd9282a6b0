"""Data of one's own, read example by example: sentences of any length, and a task that grades them."""

import random
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.rnn import pad_sequence

import trainers

GOOD, BAD = ("bright", "calm", "kind", "warm"), ("bitter", "cold", "dull", "grim")
WORDS = ("<none>", "the", "mill", "water", "wheel", "day", "was", "and", *GOOD, *BAD)


class Sentences:
    """Of three to nine words each; the grade is 1 where more of them are good than bad."""

    vocabulary = WORDS

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i):
        draw = random.Random(self.first + i)
        words = draw.choices(WORDS[1:], k=draw.randint(3, 9))
        grade = sum(word in GOOD for word in words) > sum(word in BAD for word in words)
        return {"words": torch.tensor([WORDS.index(word) for word in words]), "grade": int(grade)}


def sentences(root):
    return Sentences(0, 2000), Sentences(2000, 400)  # for training, and for the test


class Grading(trainers.Task):
    """`model(words)` gives two logits a sentence, (B, 2), for words (B, T), of which 0 is none."""

    headline, higher_is_better = "accuracy", True
    weight_per_example = 1.0

    def model(self, facts) -> nn.Module:
        return nn.Sequential(nn.EmbeddingBag(facts.vocabulary, 16, mode="sum", padding_idx=0), nn.Linear(16, 2))

    def collate(self, examples):
        words = pad_sequence([example["words"] for example in examples], batch_first=True)
        return {"words": words, "grade": torch.tensor([example["grade"] for example in examples])}

    def loss(self, model, data) -> trainers.Loss:
        return self._loss(model(data["words"]), data["grade"])

    def metrics(self, model, data) -> Mapping[str, trainers.Mean]:
        logits, grades = model(data["words"]), data["grade"]
        loss, right = self._loss(logits, grades), logits.argmax(1) == grades
        return {
            "loss": trainers.Mean(float(loss.total), loss.weight),
            "accuracy": trainers.Mean(float(right.sum()), len(right)),
        }

    def _loss(self, logits: Tensor, grades: Tensor) -> trainers.Loss:
        return trainers.Loss(F.cross_entropy(logits, grades, reduction="sum"), len(grades))
