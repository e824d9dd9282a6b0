"""A small Mask R-CNN: torchvision's, on the residual network that the claim on transfer trains beforehand."""

from collections import OrderedDict

from torch import nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from trainers.models.networks.resnet_cifar import resnet_cifar


class Backbone(nn.Module):
    """The network without its last layer, at a quarter of an image's side; its batch norm is frozen, as He et al. 2017
    have it, since a minibatch has two images."""

    def __init__(self, depth, width):
        super().__init__()
        network = resnet_cifar(2, (1, 28, 28), depth, width)
        kept = [name for name, _ in network.named_children() if name not in ("pool", "flatten", "fc")]
        self.body = nn.Sequential(OrderedDict((name, _frozen(network.get_submodule(name))) for name in kept))
        self.out_channels = 4 * width

    def forward(self, images):
        return self.body(images)


def small(num_classes, depth=8, width=16, head=128):
    """For scenes of 64 x 64 with one channel."""
    backbone = Backbone(depth, width)
    channels = backbone.out_channels
    return MaskRCNN(
        backbone,
        min_size=64,
        max_size=64,
        image_mean=[0.2],  # about those with which the network was trained
        image_std=[0.33],
        rpn_anchor_generator=AnchorGenerator(((14, 20, 28),), ((0.5, 1.0, 2.0),)),
        rpn_pre_nms_top_n_train=200,
        rpn_post_nms_top_n_train=64,
        rpn_pre_nms_top_n_test=200,
        rpn_post_nms_top_n_test=32,
        rpn_batch_size_per_image=64,
        box_roi_pool=MultiScaleRoIAlign(["0"], 7, 2),
        box_head=TwoMLPHead(channels * 49, head),
        box_predictor=FastRCNNPredictor(head, num_classes),
        box_batch_size_per_image=32,
        box_detections_per_img=20,
        mask_roi_pool=MultiScaleRoIAlign(["0"], 14, 2),
        mask_head=MaskRCNNHeads(channels, (64, 64), 1),
        mask_predictor=MaskRCNNPredictor(64, 64, num_classes),
    )


def _frozen(module):
    """With each batch norm replaced by its statistics and an affine map, all of them fixed."""
    for name, child in module.named_children():
        setattr(module, name, _frozen(child))
    return FrozenBatchNorm2d(module.num_features) if isinstance(module, nn.BatchNorm2d) else module
