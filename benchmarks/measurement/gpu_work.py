"""What both sides of the GPU's comparison train: the same model, images, order and optimiser, on one GPU."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as in the workers

IMAGES224 = "benchmarks.measurement.gpu_work:images224"
IMAGES28 = "benchmarks.measurement.gpu_work:images28"
TOKENS = "benchmarks.measurement.gpu_work:windows"
GPT = {"layers": 12, "heads": 12, "width": 768}
"""124 million parameters with windows of 1,024 of 50,304 tokens, as GPT-2's smallest."""

Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True)
class GpuWork:
    """One model with its examples: images with momentum SGD, or tokens with AdamW."""

    title: str
    model: str
    data: str
    minibatch: int
    """Examples of a virtual worker."""
    virtual: int
    """Virtual workers, or minibatches whose gradients accumulate."""
    steps: int
    """Of one measurement."""
    precision: Precision = "float32"
    compiles: bool = False
    lr: float = 0.001

    @property
    def examples(self) -> int:
        """Of one step."""
        return self.minibatch * self.virtual

    @property
    def is_text(self) -> bool:
        """Whether examples are windows of tokens."""
        return self.data == TOKENS

    def spec(self) -> dict[str, Any]:
        """The run's, as a user would write it."""
        model = {"name": self.model, "compile": self.compiles}
        optimizer = {"name": "momentum", "lr": self.lr, "weight_decay": 0.0001, "no_decay": []}
        if self.is_text:
            model, optimizer = model | {"kwargs": GPT}, {"name": "adamw", "lr": self.lr, "weight_decay": 0.1}
        return {
            "data": self.data,
            "task": "language_model" if self.is_text else "classification",
            "model": model,
            "workers": {"count": 1, "virtual": self.virtual, "gpus": 1},
            "optimizer": optimizer,
            "batch": self.minibatch,
            "epochs": 100_000,
            "device": "cuda",
            "precision": self.precision,
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
        }


def images224(**_: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """4096 images of noise as uint8, 617 MB; 1000 classes."""
    return _noise(4096, (3, 224, 224), 1000)


def images28(**_: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """65 536 small images of noise; 10 classes."""
    return _noise(65_536, (1, 28, 28), 10)


class Windows:
    """Random tokens: windows of 1,024, each with the one that follows every token."""

    vocabulary = 50_304
    context = 1024

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(self.vocabulary, (count, self.context + 1), generator=torch.Generator())

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[i, :-1], self.tokens[i, 1:]


def windows(**_: Any) -> tuple[Windows, Windows]:
    """4,096 to train, 34 MB, and a few."""
    return Windows(4096), Windows(16)


LEAD_STEPS = 3
"""Before a measurement, so that it begins while the GPU is at work."""

Steps = Callable[[int], torch.cuda.Event]
"""Enqueues so many steps, and tells when the GPU has finished them."""


def timed(work: GpuWork, steps: Steps) -> float:
    """Examples/s of `work.steps` steps, from the end of one step on the GPU to the end of another."""
    begun, ended = steps(LEAD_STEPS), steps(work.steps)
    ended.synchronize()
    return work.steps * work.examples / (begun.elapsed_time(ended) / 1000)


def _noise(count: int, shape: tuple[int, int, int], classes: int) -> tuple[np.ndarray[Any, Any], ...]:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % classes
    return images, labels, images[:16], labels[:16]
