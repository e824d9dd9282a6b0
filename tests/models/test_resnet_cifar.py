"""The residual networks of He et al. 2016 for small images."""

import pytest
import torch

from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.passes.memory_format import breaks_channels_last
from trainers.models.registry import build_model
from trainers.spec import TrainSpec
from trainers.training.setup import set_up


@pytest.mark.parametrize(("depth", "width"), [(8, 4), (20, 16)])
def test_it_has_the_layers_of_section_4_2(depth: int, width: int) -> None:
    model = build_model(ModelSpec(name="resnet_cifar", kwargs={"depth": depth, "width": width}), 10, (3, 32, 32), 0)
    weighted = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == depth + 2  # two shortcuts are projections
    blocks = (depth - 2) // 6
    inside = [2 * blocks * 9 * (width * 2**i) ** 2 for i in range(3)]  # each stage at its own width ...
    first = sum(9 * (width * 2**i) ** 2 // 2 for i in (1, 2))  # ... but its first convolution reads half of it
    norms = 2 * width + sum(4 * blocks * width * 2**i for i in range(3))
    shortcuts = sum((width * 2**i) ** 2 // 2 + 2 * width * 2**i for i in (1, 2))
    count = 27 * width + sum(inside) - first + norms + shortcuts + 4 * width * 10 + 10
    assert sum(p.numel() for p in model.parameters()) == count
    assert model.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_a_stride_of_the_first_convolution_leaves_a_quarter_of_the_pixels() -> None:
    whole, quarter = (
        build_model(ModelSpec(name="resnet_cifar", kwargs={"depth": 8, "width": 4, "stride": s}), 10, (3, 32, 32), 0)
        for s in (1, 2)
    )
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(quarter.conv1(images), whole.conv1(images)[:, :, ::2, ::2])
    assert quarter.eval()(images).shape == (2, 10)


def test_zero_gamma_makes_each_block_its_shortcut() -> None:
    model = build_model(
        ModelSpec(name="resnet_cifar", kwargs={"depth": 8, "width": 4}, zero_gamma=True), 10, (1, 8, 8), 0
    )
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(model.layer1.eval()(x), x)


def test_what_it_does_not_take() -> None:
    with pytest.raises(SpecRejected, match="depth is 8, 14, 20 or another 6 n"):
        build_model(ModelSpec(name="resnet_cifar", kwargs={"depth": 9}), 10, (3, 32, 32), 0)
    with pytest.raises(SpecRejected, match="images"):
        build_model(ModelSpec(name="resnet_cifar"), 10, (64,), 0)


@pytest.mark.parametrize(("width", "names"), [(8, ["layer2.0.downsample.0"]), (16, [])])
def test_a_narrow_one_lies_as_onednn_bears_it(width: int, names: list[str]) -> None:
    """Its backward pass of 64x64 images in channels_last ends the process, or does harm that shows later."""
    model = {"name": "resnet_cifar", "kwargs": {"depth": 8, "width": width}}
    train = TrainSpec.model_validate({"model": model, "data": {"name": "digits", "limit": 20}})
    setup = set_up(train, None)
    assert breaks_channels_last(setup.replica.model) == names
    assert setup.layout.channels_last == (not names)
    images = torch.rand(2, 1, 64, 64)
    setup.replica.point_to_vector(setup.replica.initial_params())
    setup.replica.model(images).sum().backward()
