"""A model of one's own: a function that returns a torch module, told how many classes and channels there are."""

from torch import Tensor, nn


class TinyNet(nn.Module):
    """Two convolutions, the largest value over all places, and one linear layer."""

    def __init__(self, num_classes: int, in_channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, width, 5, padding=2),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.last = nn.Linear(2 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) float32, normalised, to (B, classes), logits."""
        return self.last(self.features(images).amax(dim=(2, 3)))


def tiny_net(num_classes: int, in_channels: int, width: int = 8) -> nn.Module:
    """The module with its initial weights; torch's generator is seeded from the spec before this is called."""
    return TinyNet(num_classes, in_channels, width)
