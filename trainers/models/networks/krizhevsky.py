"""The network of paper 1: AlexNet (Krizhevsky et al. 2012) with one tower instead of two."""

from collections import OrderedDict

import torch
from torch import nn


class OneTowerAlexNet(nn.Module):
    """64, 192, 384, 384 and 256 filters (paper 1, section 5), then two fully connected layers of 4096 with dropout.

    The rest is as in 2012: response normalisation after the first two convolutions (n = 5, k = 2, beta = 0.75, alpha =
    1e-4, which torch divides by n), overlapping pooling. On 224x224 images the maps are 55, 27, 13, 13, 13 and 6 wide.
    The paper trains it with `loss: logistic`.
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        rows, columns = (_side(height), _side(width))
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 64, 11, stride=4, padding=2), relu1=nn.ReLU(), norm1=_normalisation(),
                pool1=nn.MaxPool2d(3, 2),
                conv2=nn.Conv2d(64, 192, 5, padding=2), relu2=nn.ReLU(), norm2=_normalisation(),
                pool2=nn.MaxPool2d(3, 2),
                conv3=nn.Conv2d(192, 384, 3, padding=1), relu3=nn.ReLU(),
                conv4=nn.Conv2d(384, 384, 3, padding=1), relu4=nn.ReLU(),
                conv5=nn.Conv2d(384, 256, 3, padding=1), relu5=nn.ReLU(),
                pool5=nn.MaxPool2d(3, 2),
            )
        )  # fmt: skip
        self.fc6, self.drop6 = nn.Linear(256 * rows * columns, 4096), nn.Dropout(0.5)
        self.fc7, self.drop7 = nn.Linear(4096, 4096), nn.Dropout(0.5)
        self.fc8 = nn.Linear(4096, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(B, C, H, W) to (B, classes), logits."""
        x = self.features(images).flatten(1)
        x = self.drop6(torch.relu(self.fc6(x)))
        x = self.drop7(torch.relu(self.fc7(x)))
        logits: torch.Tensor = self.fc8(x)
        return logits


def _normalisation() -> nn.Module:
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0)


def _side(pixels: int) -> int:
    """Side of the last feature maps. Raises ValueError if nothing is left of the image."""
    side = (pixels + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3) // 2 + 1
    if side < 1:
        raise ValueError("one convolution and three poolings leave nothing of images below 63x63 pixels")
    return side
