"""Every model by name, on the images it is given, from the seed and nothing else."""

import logging
from pathlib import Path

import pytest
import torch
import torchvision.models
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from trainers.errors import SpecRejected, UserCodeFailed
from trainers.models.names import model_names, torchvision_names
from trainers.models.networks.krizhevsky import OneTowerAlexNet, ReleasedAlexNet, TwoColumnAlexNet
from trainers.models.registry import build_model
from trainers.models.weights import initialise, load_weights, save_weights
from trainers.spec import ModelSpec

USERS = "tests.models.usermodels"


def built(name: str, shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10, seed: int = 0) -> nn.Module:
    return build_model(ModelSpec(name=name), classes, shape, seed)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["lenet5", "convnet", "convnet_two_columns", "mlp"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 24, 40)])
def test_small_models_work_on_small_images(name: str, shape: tuple[int, int, int]) -> None:
    module = built(name, shape, classes=7)
    assert module.training
    output = module(torch.randn(5, *shape))
    assert output.shape == (5, 7)
    output.sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_sizes_are_those_of_the_papers() -> None:
    assert num_parameters(built("lenet5")) == num_parameters(built("lenet5", (1, 32, 32))) == 61_706
    convnet = built("convnet")
    fully_connected = sum(num_parameters(layer) for layer in convnet.modules() if isinstance(layer, nn.Linear))
    assert num_parameters(convnet) == 4_324_234
    assert fully_connected / num_parameters(convnet) > 0.98


@pytest.mark.parametrize("name", ["lenet5", "squeezenet1_1", f"{USERS}:lazy"])
def test_weights_are_a_function_of_the_seed(name: str) -> None:
    shape = (3, 32, 32)
    state = torch.random.get_rng_state()
    one = built(name, shape, seed=5)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(3)
    same, other = built(name, shape, seed=5), built(name, shape, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_names_are_torchvisions() -> None:
    assert list(torchvision_names()) == sorted(torchvision.models.list_models(module=torchvision.models))
    assert model_names()[:4] == ("lenet5", "convnet", "mlp", "tabular")


@pytest.mark.parametrize(
    ("build", "filters"),
    [
        (OneTowerAlexNet, (64, 192, 384, 384, 256)),
        (ReleasedAlexNet, (64, 192, 384, 256, 256)),
        (TwoColumnAlexNet, (96, 256, 384, 384, 256)),
    ],
)
def test_the_networks_of_paper_1(build: type[OneTowerAlexNet], filters: tuple[int, ...]) -> None:
    """Section 5: the filters, and the maps, which are as wide in one tower as in two."""
    with torch.device("meta"):
        model, x = build(1000, (3, 224, 224)), torch.empty(2, 3, 224, 224)
        assert model(x).shape == (2, 1000)
        convolutions = []
        for layer in model.features:
            x = layer(x)
            if isinstance(layer, nn.Conv2d):
                convolutions.append((layer.out_channels, x.shape[-1]))
    assert convolutions == list(zip(filters, (55, 27, 13, 13, 13), strict=True))
    assert x.shape == (2, 256, 6, 6)


def test_no_tower_stands_on_small_images() -> None:
    with pytest.raises(SpecRejected, match="63x63"):
        built("alexnet_one_tower", (1, 28, 28))


def test_the_released_filters_have_a_fifth_of_a_percent_more_parameters_than_two_columns() -> None:
    """Which paper 1, section 5, says of its network. The filters in its footnote have 1.4 % more."""
    with torch.device("meta"):
        one, released, two = (
            num_parameters(build(1000, (3, 224, 224))) for build in (OneTowerAlexNet, ReleasedAlexNet, TwoColumnAlexNet)
        )
    assert two == 60_965_224  # Krizhevsky et al. 2012: 60 million
    assert released / two == pytest.approx(1.002, abs=0.0005)
    assert one / two == pytest.approx(1.014, abs=0.0005)


@pytest.mark.parametrize("name", ["alexnet_two_columns", "convnet_two_columns"])
def test_columns_meet_in_the_third_convolution_alone(name: str) -> None:
    """What the first column's maps are before it does not depend on the second one's filters."""
    model = built(name, (3, 80, 80))
    images, features = torch.randn(2, 3, 80, 80), model.features
    assert [c.groups for c in features if isinstance(c, nn.Conv2d)][1:4] == [2, 1, 2]
    below, met = (features[: list(features._modules).index(layer)] for layer in ("conv3", "relu3"))
    with torch.no_grad():
        first, of_both = below(images).chunk(2, 1)[0], met(images).chunk(2, 1)[0]
        for layer in (features.conv1, features.conv2):
            layer.weight[layer.out_channels // 2 :] += 1
        assert torch.equal(below(images).chunk(2, 1)[0], first)
        assert not torch.equal(met(images).chunk(2, 1)[0], of_both)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_0"])
def test_torchvisions_models_take_grey_images(name: str) -> None:
    grey, colour = built(name, (1, 64, 64)), built(name, (3, 64, 64))
    image = torch.randn(2, 1, 64, 64)
    with torch.no_grad():
        seen_grey, seen_colour = grey.eval()(image), colour.eval()(image.expand(2, 3, 64, 64))
    assert seen_grey.shape == (2, 10)
    assert torch.allclose(seen_grey, seen_colour, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in torchvision_names() if name not in ("vit_h_14", "regnet_y_128gf")])
def test_every_model_of_torchvisions_is_built(name: str) -> None:
    """All but the two whose weights alone are 2.5 GB."""
    assert num_parameters(built(name, (1, 224, 224))) > 10_000


def test_a_vision_transformer_is_made_for_the_size_of_the_images() -> None:
    assert built("vit_b_32", (1, 64, 64)).image_size == 64


def test_googlenet_has_one_output() -> None:
    assert built("googlenet", (3, 64, 64))(torch.randn(2, 3, 64, 64)).shape == (2, 10)


def test_arguments_reach_the_constructor() -> None:
    module = build_model(ModelSpec(name="mlp", kwargs={"hidden": 16}), 10, (1, 8, 8), 0)
    assert num_parameters(module) == 64 * 16 + 16 + 16 * 10 + 10
    resnet = build_model(ModelSpec(name="resnet18", kwargs={"zero_init_residual": True}), 10, (3, 32, 32), 0)
    assert not resnet.get_parameter("layer1.0.bn2.weight").any()


@pytest.mark.parametrize(
    ("spec", "shape", "words"),
    [
        (ModelSpec(name="lenet5", kwargs={"depth": 3}), (1, 28, 28), "lenet5 takes none, not 'depth'"),
        (ModelSpec(name="mlp", kwargs={"hidden": "many"}), (1, 28, 28), "mlp cannot work"),
        (ModelSpec(name="resnet18", kwargs={"depth": 3}), (3, 28, 28), "resnet18 cannot be made .*depth"),
        (ModelSpec(name="alexnet"), (3, 28, 28), "28x28 pixels and 3 channels .*data.random_resized_crop"),
        (ModelSpec(name="lenet5"), (1, 3, 3), "3x3 pixels and 1 channel "),
        (ModelSpec(name="vit_b_16"), (3, 30, 30), "vit_b_16 cannot be made for images of 30x30"),
        (ModelSpec(name="squeezenet1_1"), (5, 64, 64), "5 channels; give a model of your own"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(spec: ModelSpec, shape: tuple[int, int, int], words: str) -> None:
    with pytest.raises(SpecRejected, match=words):
        build_model(spec, 10, shape, 0)


@pytest.mark.parametrize(("name", "near"), [("lenet", "lenet5"), ("resnet19", "resnet18")])
def test_an_unknown_name_is_refused_when_the_spec_is_read(name: str, near: str) -> None:
    with pytest.raises(ValidationError, match=rf"there is no '{name}'; did you mean {near}.*module:function"):
        ModelSpec(name=name)


def test_a_users_model_is_told_classes_channels_and_arguments() -> None:
    module = build_model(ModelSpec(name=f"{USERS}:linear", kwargs={"side": 4}), 6, (2, 4, 4), 0)
    assert module(torch.zeros(3, 2, 4, 4)).shape == (3, 6)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises", r"raised ZeroDivisionError: no classes for me\n  File .*usermodels\.py.* in raises"),
        ("returns_a_number", "returned int; it must return a torch.nn.Module"),
        ("lazy_and_broken", "IndexError: forgot the pooling\n(.*\n)*.*usermodels.py"),
    ],
)
def test_mistakes_of_the_users_are_reported(function: str, words: str) -> None:
    with pytest.raises(UserCodeFailed, match=words):
        built(f"{USERS}:{function}", (1, 8, 8))


def test_saved_weights_load_in_plain_pytorch(tmp_path: Path) -> None:
    module = built("lenet5", seed=1)
    save_weights(tmp_path / "model.safetensors", module)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]
    plain = built("lenet5", seed=2)
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    image = torch.randn(2, 1, 28, 28)
    assert torch.equal(plain(image), module(image))


def test_slices_of_one_vector_and_tied_weights_are_saved_whole(tmp_path: Path) -> None:
    flat = torch.arange(10.0)
    save_weights(tmp_path / "w.safetensors", {"a": flat[:4].view(2, 2).T, "b": flat[4:], "tied": flat[4:]})
    loaded = load_weights(tmp_path / "w.safetensors")
    assert torch.equal(loaded["a"], flat[:4].view(2, 2).T)
    assert torch.equal(loaded["b"], flat[4:])
    assert torch.equal(loaded["tied"], flat[4:])


def test_initial_weights_keep_the_last_layer_for_other_classes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = built("lenet5", classes=10, seed=1)
    path = tmp_path / "pretrained.safetensors"
    save_file({**source.state_dict(), "extra": torch.zeros(1)}, path)
    fresh = built("lenet5", classes=4, seed=2)
    with caplog.at_level(logging.INFO):
        module = build_model(ModelSpec(name="lenet5", weights=str(path)), 4, (1, 28, 28), 2)
    assert torch.equal(module.get_parameter("conv1.weight"), source.get_parameter("conv1.weight"))
    assert torch.equal(module.get_parameter("fc3.weight"), fresh.get_parameter("fc3.weight"))
    assert "keep their initial values: fc3.weight, fc3.bias" in caplog.text
    report = initialise(module, ModelSpec(name="mlp", weights=str(path)))
    assert report.shape_differs == ("fc3.weight", "fc3.bias")
    assert len(report.loaded) == 8
    assert (report.missing, report.unused) == ((), ("extra",))


def test_initial_weights_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"

    def build() -> None:
        build_model(ModelSpec(name="lenet5", weights=str(path)), 10, (1, 28, 28), 0)

    with pytest.raises(SpecRejected, match=r"there is no file .*w\.safetensors"):
        build()
    path.write_bytes(b"pickle")
    with pytest.raises(SpecRejected, match="not a safetensors file"):
        build()
    save_file({"layer.weight": torch.zeros(3)}, path)
    with pytest.raises(SpecRejected, match=r"nothing in .* fits the model; it holds layer.weight"):
        build()
