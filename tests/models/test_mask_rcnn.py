"""The small Mask R-CNN starts from a pretrained residual network, whose tensors it takes by name."""

import torch

from trainers.models.config import ModelSpec
from trainers.models.networks.mask_rcnn import mask_rcnn
from trainers.models.networks.resnet_cifar import resnet_cifar
from trainers.models.weights import initialise_from


def test_it_takes_all_of_a_classifier_but_the_last_layer() -> None:
    torch.manual_seed(0)
    network = resnet_cifar(20, (1, 28, 28), depth=8, width=8)
    network(torch.rand(4, 1, 28, 28))  # so that statistics are not those of the start
    model = mask_rcnn(21)
    state = {f"backbone.body.{name}": tensor for name, tensor in network.state_dict().items()}
    report = initialise_from(model, state, ModelSpec(name="task", weights="there"))
    assert not report.shape_differs
    assert not [name for name in report.missing if name.startswith("backbone")]
    assert {name.rsplit(".", 1)[1] if "num_batches" in name else name for name in report.unused} == {
        "num_batches_tracked", "backbone.body.fc.weight", "backbone.body.fc.bias"
    }  # fmt: skip
    images = torch.rand(2, 1, 64, 64)
    features = network.eval()[:-3](images)
    torch.testing.assert_close(model.backbone(images), features, rtol=1e-4, atol=1e-4)
    found = model.eval()([*images])
    assert all(one["masks"].shape[1:] == (1, 64, 64) for one in found)
