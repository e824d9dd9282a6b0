"""What both sides of the GPU's comparison train: the same model, images, order and optimiser, on one GPU."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as in the workers

IMAGES224 = "benchmarks.measurement.gpu_work:images224"
IMAGES28 = "benchmarks.measurement.gpu_work:images28"


@dataclass(frozen=True)
class GpuWork:
    """One model with its images; momentum SGD with weight decay."""

    title: str
    model: str
    data: str
    minibatch: int
    """Examples of a virtual worker."""
    virtual: int
    """Virtual workers, or minibatches whose gradients accumulate."""
    steps: int
    """Of one measurement."""
    tf32: bool = False
    """Whether the benchmark has products and convolutions rounded to TF32, for both sides; no spec asks for it."""
    lr: float = 0.001

    @property
    def examples(self) -> int:
        """Of one step."""
        return self.minibatch * self.virtual

    def spec(self) -> dict[str, Any]:
        """The run's, as a user would write it."""
        return {
            "data": self.data,
            "model": {"name": self.model, "memory_format": "channels_last"},
            "workers": {"count": 1, "virtual": self.virtual, "gpus": 1},
            "optimizer": {"name": "momentum", "lr": self.lr, "weight_decay": 0.0001, "no_decay": []},
            "batch": self.minibatch,
            "epochs": 100_000,
            "device": "cuda",
            "evaluate": {"every_epochs": 0},
            "checkpoint": {"every_epochs": 0},
        }


def images224(**_: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """4096 images of noise as uint8, 617 MB; 1000 classes."""
    return _noise(4096, (3, 224, 224), 1000)


def images28(**_: Any) -> tuple[np.ndarray[Any, Any], ...]:
    """65 536 small images of noise; 10 classes."""
    return _noise(65_536, (1, 28, 28), 10)


LEAD_STEPS = 3
"""Before a measurement, so that it begins while the GPU is at work."""

Steps = Callable[[int], torch.cuda.Event]
"""Enqueues so many steps, and tells when the GPU has finished them."""


def timed(work: GpuWork, steps: Steps) -> float:
    """Examples/s of `work.steps` steps, from the end of one step on the GPU to the end of another."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = work.tf32
    begun, ended = steps(LEAD_STEPS), steps(work.steps)
    ended.synchronize()
    return work.steps * work.examples / (begun.elapsed_time(ended) / 1000)


def _noise(count: int, shape: tuple[int, int, int], classes: int) -> tuple[np.ndarray[Any, Any], ...]:
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (count, *shape), dtype=np.uint8)
    labels = np.arange(count, dtype=np.int64) % classes
    return images, labels, images[:16], labels[:16]
