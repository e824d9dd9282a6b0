"""AlexNet (Krizhevsky et al. 2012) in two columns, and with one tower instead (paper 1)."""

from collections import OrderedDict
from typing import ClassVar

import torch
from torch import nn

from trainers.models.networks.column_norm import ColumnNorm


class OneTowerAlexNet(nn.Module):
    """64, 192, 384, 384 and 256 filters (paper 1, section 5), then two fully connected layers of 4096 with dropout.

    The rest is as in 2012: response normalisation after the first two convolutions, overlapping pooling. On 224x224
    images the maps are 55, 27, 13, 13, 13 and 6 wide. The paper trains it with `loss: logistic`.
    """

    filters: ClassVar[tuple[int, int, int, int, int]] = (64, 192, 384, 384, 256)
    columns: ClassVar[int] = 1
    """Into which the filters are divided: those of the second, fourth and fifth convolution see only their own."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        rows, columns = (_side(height), _side(width))
        a, b, c, d, e = self.filters
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, a, 11, stride=4, padding=2), relu1=nn.ReLU(),
                norm1=ColumnNorm(a // self.columns), pool1=nn.MaxPool2d(3, 2),
                conv2=nn.Conv2d(a, b, 5, padding=2, groups=self.columns), relu2=nn.ReLU(),
                norm2=ColumnNorm(b // self.columns), pool2=nn.MaxPool2d(3, 2),
                conv3=nn.Conv2d(b, c, 3, padding=1), relu3=nn.ReLU(),
                conv4=nn.Conv2d(c, d, 3, padding=1, groups=self.columns), relu4=nn.ReLU(),
                conv5=nn.Conv2d(d, e, 3, padding=1, groups=self.columns), relu5=nn.ReLU(),
                pool5=nn.MaxPool2d(3, 2),
            )
        )  # fmt: skip
        self.fc6, self.drop6 = nn.Linear(e * rows * columns, 4096), nn.Dropout(0.5)
        self.fc7, self.drop7 = nn.Linear(4096, 4096), nn.Dropout(0.5)
        self.fc8 = nn.Linear(4096, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, classes), logits."""
        x = self.features(images).flatten(1)
        x = self.drop6(torch.relu(self.fc6(x)))
        x = self.drop7(torch.relu(self.fc7(x)))
        logits: torch.Tensor = self.fc8(x)
        return logits


class ReleasedAlexNet(OneTowerAlexNet):
    """The filters of the code that was released with paper 1, cuda-convnet2: 256 in the fourth convolution.

    It is this one that has 0.2 % more parameters than the two columns, as the paper says of its own (section 5), which
    has 1.4 % more.
    """

    filters = (64, 192, 384, 256, 256)


class TwoColumnAlexNet(OneTowerAlexNet):
    """The network of Krizhevsky et al. 2012, section 3.5: a column for each of two GPUs, which meet in the third
    convolution and in the fully connected layers. Responses are normalised within a column, as there.

    The fully connected layers' biases begin as torch has them, and not at 1.
    """

    filters = (96, 256, 384, 384, 256)
    columns = 2


def _side(pixels: int) -> int:
    """Side of the last feature maps. Raises ValueError if nothing is left of the image."""
    side = (pixels + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    if side < 1:
        raise ValueError("one convolution and three poolings leave nothing of images below 63x63 pixels")
    return side
