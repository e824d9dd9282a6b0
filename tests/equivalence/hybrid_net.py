"""The network and the spec of the hybrid tests."""

from functools import cache

import torch
from torch import Tensor, nn

from tests.equivalence.harness import (
    Run,
    digits_spec,
    serial,
    step_batches,
)
from trainers.optim.buffers import Buffers
from trainers.spec import TrainSpec

SCHEMES = ("a", "b", "c", "bc")


class Net(nn.Module):
    """Batch norm in the backbone, dropout in the backbone and in the head, layers of 33 and 17 units."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Sequential(
            nn.Linear(64, 33),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(33, 17),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(17, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def spec(virtual: int, count: int, algorithm: dict[str, object] | None = None, **more: object) -> TrainSpec:
    """24 steps of 5 virtual workers with 7 examples each; the last step of an epoch has 28 examples for all of them."""
    fields = {
        "algorithm": {"name": "hybrid"} | (algorithm or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 203, "random_crop": 1, "horizontal_flip": True, "random_erasing": {}},
        "epochs": 4,
    }
    return digits_spec(fields | more)


@cache
def serial_params(virtual: int, loss: str) -> Tensor:
    run = Run(spec(virtual, 1, loss=loss), net)
    return serial(run, step_batches(run), "mean")


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative."""
    return float((found - expected).norm() / expected.norm())


def vectors(version: Buffers) -> list[Tensor]:
    return [version.params, *version.state.values()]
