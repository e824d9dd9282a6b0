"""The model."""

from torch import nn


def my_model(num_classes: int, in_features: int, width: int = 32) -> nn.Module:
    """Takes (B, in_features), gives (B, num_classes): as many numbers as an example has to be learned.

    Both come from the data, and `width` from `model.kwargs` of the spec. Weights may be drawn from torch's generator,
    which is seeded from the spec.
    """
    return nn.Sequential(
        nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
    )
