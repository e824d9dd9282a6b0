"""The networks and the spec of the tests of `spatial`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.harness import digits_spec
from trainers.spec import TrainSpec


class Plain(nn.Module):
    """Two convolutions with an overlapping pooling between; batch norm, dropout and a fully connected layer after."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            nn.Conv2d(4, 6, 3, padding="same"), nn.Tanh(),
        )  # fmt: skip
        self.norm, self.drop, self.fc = nn.BatchNorm2d(6), nn.Dropout(0.3), nn.Linear(96, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(self.features(x))).flatten(1))


class Residual(nn.Module):
    """Branches that are added and joined, and poolings that are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.wide = nn.Conv2d(8, 4, (5, 1), padding=(2, 0))
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = x + F.relu(self.second(x))
        x = torch.cat([x, torch.tanh(x)], 1)
        x = F.avg_pool2d(self.wide(x), 2)
        return self.fc(F.max_pool2d(x, 3, stride=1, padding=1).flatten(1))


class Alex(nn.Module):
    """AlexNet in narrow: a stride of 4, response normalisation, overlapping poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 11, stride=4, padding=2), nn.ReLU(), nn.LocalResponseNorm(3), nn.MaxPool2d(3, 2),
            nn.Conv2d(4, 6, 5, padding=2), nn.ReLU(), nn.LocalResponseNorm(3),
            nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.fc = nn.Sequential(nn.Linear(54, 20), nn.ReLU(), nn.Dropout(0.5), nn.Linear(20, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).flatten(1))


class Normalised(nn.Module):
    """Batch norm between its convolutions, in a residual block of torchvision's form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6, momentum=None)
        self.short = nn.Sequential(nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.relu, self.fc = nn.ReLU(inplace=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(x))
        y += self.short(x)
        return self.fc(F.adaptive_avg_pool2d(self.relu(y), 1).flatten(1))


def normalised(num_classes: int, in_channels: int) -> nn.Module:
    return Normalised()


def net(kind: type[nn.Module]) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return kind()

    return build


def spec(virtual: int, count: int, algorithm: dict[str, object] | None = None, **more: object) -> TrainSpec:
    """In the last step of an epoch some virtual workers have fewer examples, or none."""
    fields = {
        "algorithm": {"name": "spatial"} | (algorithm or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 101, "random_crop": 1, "horizontal_flip": True},
        "epochs": 2,
    }
    return digits_spec(fields | more)
