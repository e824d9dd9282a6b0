"""Models for the GPU's tests, as a spec names them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class SmallNet(nn.Module):
    """Convolution, batch norm, dropout and two fully connected layers on 1 x 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.3), nn.Linear(4 * 16, 33), nn.Linear(33, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(self.drop(x))))


def small_net(**_: Any) -> nn.Module:
    return SmallNet()


class Windows:
    """Random tokens with the ones that follow; long enough that attention takes its fast kernels."""

    vocabulary = 100

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(self.vocabulary, (count, 129), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tokens[i, :-1], self.tokens[i, 1:]


def windows(**_: object) -> tuple[Windows, Windows]:
    """12 to train: three steps of two minibatches of two."""
    return Windows(12), Windows(4)
