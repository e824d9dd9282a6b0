"""A model and a dataset of a user's, through which a test strikes a named worker at a named minibatch."""

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

MOST_BYTES = 4 * 2**30
SLOW_S = 1.0
"""A minibatch of a run that would be over before the test has done all that it has in mind."""


def eat() -> None:
    """Take memory, 32 MB after 32 MB, until the process is ended for that; raises if nobody does."""
    eaten = [bytearray(b"x") * 2**25 for _ in range(MOST_BYTES // 2**25)]
    raise RuntimeError(f"{len(eaten)} pieces of 32 MB were to be had")


@torch.fx.wrap
def paused(x: Tensor, plan: str, pause_s: float, slow_after: float = math.inf) -> Tensor:
    """x, later, as a minibatch of `Looks` is: `hybrid` and `spatial` trace models, and keep calls of such functions."""
    if pause_s and torch.is_grad_enabled() and not (Path(plan) / "hurry").exists():
        with (Path(plan) / "begun").open("ab", buffering=0) as begun:  # a byte for each minibatch of any worker
            begun.write(b".")
            time.sleep(SLOW_S if begun.tell() > slow_after else pause_s)
    return x


class Looks(nn.Module):
    """Looks before each minibatch whether it is meant.

    A file `<worker>-<minibatch>` or `any` in the folder `plan` says what happens: `kill`, `stop`, `raise`, or `eat`,
    which takes memory until somebody ends the process. It happens once, to whoever removes the file. Each minibatch
    takes `pause_s` longer until there is a file `hurry`, and `SLOW_S` when all workers together have begun
    `slow_after`; as long as there is no such file, a worker goes no further than the minibatch that a file
    `until-<worker>` names, and leaves a file `held-<worker>` when it would.
    """

    def __init__(self, plan: str, pause_s: float, slow_after: float = math.inf) -> None:
        super().__init__()
        self.plan, self.pause, self.minibatches = Path(plan), (plan, pause_s, slow_after), 0

    def look(self, x: Tensor) -> Tensor:
        """x, when its worker may go on."""
        x = paused(x, *self.pause)
        if torch.is_grad_enabled():
            self._look()
        return x

    def _look(self) -> None:
        self.minibatches += 1
        name = (ray.get_runtime_context().get_actor_name() or "").rpartition("/")[2]
        while self._is_held(name):
            time.sleep(0.01)
        for path in (self.plan / f"{name}-{self.minibatches}", self.plan / "any"):
            try:
                what = path.read_text()
                path.unlink()
            except FileNotFoundError:
                continue
            if what == "raise":
                raise RuntimeError("struck")
            if what == "eat":
                eat()
            os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[what])

    def _is_held(self, name: str) -> bool:
        until = self.plan / f"until-{name}"
        held = until.exists() and not (self.plan / "hurry").exists() and self.minibatches > int(until.read_text())
        if held:
            (self.plan / f"held-{name}").touch()
        return held


class Struck(Looks):
    """Convolution, batch norm, dropout and two fully connected layers."""

    def __init__(self, num_classes: int, in_channels: int, *looks: Any) -> None:
        super().__init__(*looks)
        self.conv, self.norm = nn.Conv2d(in_channels, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.3), nn.Linear(4 * 16, 33), nn.Linear(33, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.look(x)
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(self.drop(x))))


class Deeper(nn.Module):
    """Three fully connected layers, all of whose units but the last's can be divided into blocks."""

    def __init__(self, num_classes: int, in_channels: int, plan: str, pause_s: float) -> None:
        super().__init__()
        self.plan, self.pause_s = plan, pause_s
        self.conv, self.norm = nn.Conv2d(in_channels, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc1, self.fc2, self.fc3 = nn.Linear(4 * 16, 32), nn.Linear(32, 24), nn.Linear(24, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(paused(x, self.plan, self.pause_s)))
        x = F.max_pool2d(torch.relu(x), 2).flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class InRows(nn.Module):
    """A convolution and a pooling whose rows can be divided, and two fully connected layers."""

    def __init__(self, num_classes: int, in_channels: int, plan: str, pause_s: float) -> None:
        super().__init__()
        self.plan, self.pause_s = plan, pause_s
        self.conv, self.norm = nn.Conv2d(in_channels, 4, 3, padding=1), nn.BatchNorm1d(4 * 16)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.3), nn.Linear(4 * 16, 32), nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv(x)), 3, stride=2, padding=1)
        x = self.norm(paused(x.flatten(1), self.plan, self.pause_s))
        return self.fc2(torch.relu(self.fc1(self.drop(x))))


def in_rows(num_classes: int, in_channels: int, plan: str = "", pause_s: float = 0.0) -> nn.Module:
    return InRows(num_classes, in_channels, plan, pause_s)


class Columned(nn.Module):
    """Two columns of convolutions, which meet in the second and below the fully connected layers."""

    def __init__(self, num_classes: int, in_channels: int, plan: str, pause_s: float) -> None:
        super().__init__()
        self.plan, self.pause_s = plan, pause_s
        self.conv1, self.conv2 = nn.Conv2d(in_channels, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.fc1, self.fc2 = nn.Linear(8 * 16, 32), nn.Linear(32, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(paused(x, self.plan, self.pause_s))), 2)
        x = torch.relu(self.conv3(torch.relu(self.conv2(x))))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def columned(num_classes: int, in_channels: int, plan: str = "", pause_s: float = 0.0) -> nn.Module:
    return Columned(num_classes, in_channels, plan, pause_s)


def deeper(num_classes: int, in_channels: int, plan: str = "", pause_s: float = 0.0) -> nn.Module:
    return Deeper(num_classes, in_channels, plan, pause_s)


def struck(
    num_classes: int, in_channels: int, plan: str = "", pause_s: float = 0.0, slow_after: float = math.inf
) -> nn.Module:
    return Struck(num_classes, in_channels, plan, pause_s, slow_after)


def prime(root: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """10,007 images: a prime, so that nothing divides evenly."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (10_007 + 100, 1, 8, 8), dtype=np.uint8)
    labels = draw.integers(0, 10, len(images))
    return images[:10_007], labels[:10_007], images[10_007:], labels[10_007:]
