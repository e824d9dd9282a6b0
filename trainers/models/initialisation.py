"""Initial weights after paper 4 (section 5.1). Draws come from torch's own generator, which the caller seeds."""

import torch
from torch import nn

from trainers.errors import SpecRejected


@torch.no_grad()
def he_initialise(name: str, model: nn.Module, num_classes: int) -> None:
    """Convolutions after He et al. 2015 (fan out, for ReLU), the last layer from a Gaussian with 0.01, their biases 0.

    The last layer is the last fully connected layer or convolution that has one output per class.
    """
    weighted = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    last = [layer for layer in weighted if num_classes == layer.weight.shape[0]][-1:]
    if not last:
        raise SpecRejected(f"model.init: {name} has no last layer with {num_classes} outputs; set model.init: default")
    for layer in weighted:
        if layer is last[0]:
            nn.init.normal_(layer.weight, std=0.01)
        elif isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@torch.no_grad()
def zero_gamma(name: str, model: nn.Module) -> None:
    """gamma = 0 in the last batch norm of each residual block, so that a block begins as its shortcut."""
    from torchvision.models.resnet import BasicBlock, Bottleneck

    found = 0
    for block in model.modules():
        if isinstance(block, BasicBlock | Bottleneck):
            norm = block.bn3 if isinstance(block, Bottleneck) else block.bn2
            nn.init.zeros_(norm.weight)
            found += 1
    if not found:
        raise SpecRejected(f"model.zero_gamma: {name} has none of torchvision's residual blocks; leave it out")
