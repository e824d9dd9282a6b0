"""The residual networks for small images of He et al. 2016, section 4.2."""

from collections import OrderedDict

from torch import nn


def resnet_cifar(
    num_classes: int, image_shape: tuple[int, ...], depth: int = 20, width: int = 16, stride: int = 1
) -> nn.Module:
    """Images (B, C, H, W) to logits (B, classes): a 3x3 convolution, three stages of (depth - 2) / 6 blocks with width,
    2 width and 4 width filters, the mean over pixels, and one fully connected layer. Where a stage begins with a
    stride, its shortcut is a 1x1 convolution: their option B, as in torchvision's blocks, of which these are made.

    stride: Of the first convolution; 2, which is not in the paper, leaves a quarter of the work.

    Raises ValueError.
    """
    from torchvision.models.resnet import BasicBlock  # takes half a second, which no other model need wait for

    if len(image_shape) != 3 or min(image_shape[1:]) < 4:
        raise ValueError("it needs images, of 4x4 pixels or more")
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth is 8, 14, 20 or another 6 n + 2, not {depth}")
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(image_shape[0], width, 3, stride, padding=1, bias=False),
        "bn1": nn.BatchNorm2d(width),
        "relu": nn.ReLU(),
    }
    planes = width
    for stage in range(3):
        outputs, blocks = width * 2**stage, []
        for block in range((depth - 2) // 6):
            stride = 2 if stage and not block else 1
            shortcut = None
            if stride != 1:
                shortcut = nn.Sequential(nn.Conv2d(planes, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            blocks.append(BasicBlock(planes, outputs, stride, shortcut))
            planes = outputs
        layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
    rest = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(planes, num_classes)}
    return nn.Sequential(OrderedDict({**layers, **rest}))
