"""A small Faster R-CNN: torchvision's, on three convolutions."""

from typing import Any

from torch import nn


def small_rcnn(num_classes: int, image_shape: tuple[int, ...], width: int = 32) -> nn.Module:
    """A detector of `num_classes` classes, of which 0 is the ground, for images of about this shape (C, H, W), which
    are not resized."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.ops import MultiScaleRoIAlign

    channels, *sides = image_shape
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((channels, width // 2, 1), (width // 2, width, 2), (width, width, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    backbone: Any = nn.Sequential(*layers)
    backbone.out_channels = width
    model: nn.Module = FasterRCNN(
        backbone,
        box_head=TwoMLPHead(width * 25, 4 * width),
        box_predictor=FastRCNNPredictor(4 * width, num_classes),
        rpn_anchor_generator=AnchorGenerator(((8, 16, 32),), ((0.5, 1.0, 2.0),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        min_size=min(sides),
        max_size=max(sides),
        image_mean=[0.5] * channels,
        image_std=[0.25] * channels,
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=50,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=50,
        rpn_batch_size_per_image=64,
        box_batch_size_per_image=32,
    )
    return model
