"""Small models: lenet5, convnet, convnet_two_columns, mlp. Their parameters have plain names, as in any module."""

import math
from collections import OrderedDict

import torch
from torch import nn

from trainers.models.networks.column_norm import ColumnNorm


def _checked(image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The same shape. Raises ValueError for images too small for two poolings."""
    if min(image_shape[1:]) < 4:
        raise ValueError("two poolings by two leave nothing of images below 4x4 pixels")
    return image_shape


class _TwoConvolutions(nn.Module):
    """Two convolutions with ReLU and max pooling, and three fully connected layers; subclasses set the sizes."""

    conv1: nn.Conv2d
    conv2: nn.Conv2d
    pool: nn.MaxPool2d
    fc1: nn.Linear
    fc2: nn.Linear
    fc3: nn.Linear

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, classes), logits."""
        x = self.pool(torch.relu(self.conv1(images)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        x = torch.relu(self.fc2(x))
        logits: torch.Tensor = self.fc3(x)
        return logits


class LeNet5(_TwoConvolutions):
    """LeNet-5 (LeCun et al. 1998, section II.B) as it is used today.

    Differs from the paper: ReLU instead of a scaled tanh; max pooling without weights instead of trained
    subsampling; every map of the second convolution sees all six maps below; a linear last layer for softmax cross
    entropy instead of Gaussian connections.

    The paper's input is 32x32. Images of 28x28 are padded by the first convolution to the same maps; smaller ones
    (8x8 digits) are padded by both, else nothing would be left of them.
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = _checked(image_shape)
        side = min(height, width)
        first, second = (2 if side < 32 else 0), (2 if side < 28 else 0)
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=first)
        self.conv2 = nn.Conv2d(6, 16, 5, padding=second)
        self.pool = nn.MaxPool2d(2)
        rows, columns = (((size + 2 * first - 4) // 2 + 2 * second - 4) // 2 for size in (height, width))
        self.fc1 = nn.Linear(16 * rows * columns, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)


class ConvNet(_TwoConvolutions):
    """Two convolutions and three fully connected layers: on 28x28 4.3 M parameters, 98 % of them fully connected.

    The proportions are those of AlexNet, with which papers 1 and 3 show where data parallelism is expensive: the
    convolutions have few parameters and most of the computation, the fully connected layers the reverse.
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = _checked(image_shape)
        self.conv1 = nn.Conv2d(channels, 32, 5, padding=2)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=2)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, num_classes)


class TwoColumnConvNet(nn.Module):
    """AlexNet's two columns in small: convolutions 2 and 4 see the maps of their own column, 3 those of both.

    Four convolutions, response normalisation within a column, and the fully connected layers of `ConvNet`.
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = _checked(image_shape)
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 32, 5, padding=2), relu1=nn.ReLU(), norm1=ColumnNorm(16),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(32, 64, 5, padding=2, groups=2), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
                conv3=nn.Conv2d(64, 64, 3, padding=1), relu3=nn.ReLU(),
                conv4=nn.Conv2d(64, 64, 3, padding=1, groups=2), relu4=nn.ReLU(),
            )
        )  # fmt: skip
        self.fc1 = nn.Linear(64 * (height // 4) * (width // 4), 1024)
        self.fc2 = nn.Linear(1024, 1024)
        self.fc3 = nn.Linear(1024, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, classes), logits."""
        x = torch.relu(self.fc1(self.features(images).flatten(1)))
        x = torch.relu(self.fc2(x))
        logits: torch.Tensor = self.fc3(x)
        return logits


class Mlp(nn.Module):
    """One hidden layer."""

    def __init__(self, num_classes: int, image_shape: tuple[int, ...], hidden: int = 128) -> None:
        """image_shape: (C, H, W), or (F,) of vectors."""
        super().__init__()
        self.fc1 = nn.Linear(math.prod(image_shape), hidden)
        self.fc2 = nn.Linear(hidden, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, ...) to (B, classes), logits."""
        logits: torch.Tensor = self.fc2(torch.relu(self.fc1(images.flatten(1))))
        return logits
