"""A small Mask R-CNN (He et al. 2017): torchvision's, on the residual network for small images."""

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from trainers.models.networks.resnet_cifar import resnet_cifar

HEAD = ("pool", "flatten", "fc")
"""What a classifier has and a backbone has not."""


class Backbone(nn.Module):
    """`resnet_cifar` without its last layer. Its tensors have that network's names behind `backbone.body.`, and its
    batch norm is frozen, as usual where a minibatch has but two images."""

    def __init__(self, channels: int, depth: int, width: int, stride: int) -> None:
        super().__init__()
        network = resnet_cifar(2, (channels, 32, 32), depth, width, stride)
        kept = [(name, _frozen(part)) for name, part in network.named_children() if name not in HEAD]
        self.body = nn.Sequential(OrderedDict(kept))
        self.out_channels = 4 * width

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 4 width, H / 4, W / 4), or half of that with a stride of 2."""
        features: Tensor = self.body(images)
        return features


def mask_rcnn(
    num_classes: int,
    side: int = 64,
    channels: int = 1,
    depth: int = 8,
    width: int = 8,
    stride: int = 1,
    mean: float = 0.21,
    std: float = 0.34,
) -> nn.Module:
    """A detector with masks of `num_classes` classes, of which 0 is the ground, for images of `side` pixels.

    mean, std: By which images are normalised; the defaults are those of garments and digits together, with which a
    pretrained network saw its images.
    """
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.ops import MultiScaleRoIAlign

    backbone: Any = Backbone(channels, depth, width, stride)
    features = backbone.out_channels
    model: nn.Module = MaskRCNN(
        backbone,
        min_size=side,
        max_size=side,
        image_mean=[mean] * channels,
        image_std=[std] * channels,
        rpn_anchor_generator=AnchorGenerator(((14, 20, 28),), ((0.5, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=50,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=30,
        rpn_batch_size_per_image=64,
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        box_head=TwoMLPHead(features * 25, 128),
        box_predictor=FastRCNNPredictor(128, num_classes),
        box_batch_size_per_image=16,
        box_detections_per_img=10,
        mask_roi_pool=MultiScaleRoIAlign(["0"], 7, 2),
        mask_head=MaskRCNNHeads(features, (32, 32), 1),
        mask_predictor=MaskRCNNPredictor(32, 32, num_classes),
    )
    return model


def _frozen(module: nn.Module) -> nn.Module:
    """With statistics and affine map of each batch norm fixed."""
    from torchvision.ops import FrozenBatchNorm2d

    for name, child in module.named_children():
        setattr(module, name, _frozen(child))
    return FrozenBatchNorm2d(module.num_features) if isinstance(module, nn.BatchNorm2d) else module
