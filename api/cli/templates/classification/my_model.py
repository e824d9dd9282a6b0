"""The model."""

from torch import nn


def my_model(num_classes: int, in_features: int, width: int = 32) -> nn.Module:
    """Takes (B, in_features), gives logits (B, num_classes).

    Of images it would be a function of `num_classes` and `in_channels`. Both come from the data, and `width` from
    `model.kwargs` of the spec. Weights may be drawn from torch's generator, which is seeded from the spec.
    """
    return nn.Sequential(
        nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
    )
