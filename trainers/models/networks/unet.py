"""A small U-Net: a class for each pixel."""

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """Images (B, C, H, W) to logits (B, classes, H, W), after Ronneberger et al. 2015 in small: two poolings, batch
    norm, convolutions that keep the size, so that sides of any length do."""

    def __init__(self, num_classes: int, image_shape: tuple[int, ...], width: int = 16) -> None:
        super().__init__()
        if len(image_shape) != 3 or min(image_shape[1:]) < 4:
            raise ValueError("it needs images, of 4x4 pixels or more")
        self.enter = _block(image_shape[0], width)
        self.down1, self.down2 = _block(width, 2 * width), _block(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up1, self.join1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2), _block(4 * width, 2 * width)
        self.up2, self.join2 = nn.ConvTranspose2d(2 * width, width, 2, 2), _block(2 * width, width)
        self.last = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        whole = self.enter(images)
        half = self.down1(self.pool(whole))
        x = self.down2(self.pool(half))
        x = self.join1(torch.cat([self.up1(x, half.shape[-2:]), half], 1))
        x = self.join2(torch.cat([self.up2(x, whole.shape[-2:]), whole], 1))
        logits: Tensor = self.last(x)
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip
