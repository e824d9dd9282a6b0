"""Costs by counting: a model worked out by hand, AlexNet as paper 1 describes it, and nothing lost in any model."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.swin_transformer import ShiftedWindowAttentionV2

from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.connect import ConnectSpec
from trainers.cost.figures import Images, ModelCost, images_of
from trainers.cost.layers import kind_of, profile_model, profile_spec
from trainers.data.datasets import open_dataset
from trainers.data.names import IMAGES, NUM_TRAIN
from trainers.errors import SpecRejected
from trainers.models.registry import build_model
from trainers.spec import DataSpec, ModelSpec, TrainSpec

USERS, SETS = "tests.cost.usermodels", "tests.tasks.usersets"
WORDS, GRADED = "tests.models.usermodels:Words", "tests.training.test_preflight:graded"
HIDDEN = {"name": "transformers", "kwargs": {"head": "MaskedLM"}}
BERT = {"name": "hf:bert", "kwargs": {"vocab_size": 21, "hidden_size": 8, "num_hidden_layers": 1}}
BERT["kwargs"] |= {"num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}


def cost_of(name: str, images: Images | None = None) -> ModelCost:
    model = ModelSpec(name=name)
    known = images or images_of(model)
    assert known is not None
    return profile_model(model, known)


@pytest.mark.parametrize("name", ["alexnet", "alexnet_one_tower", "alexnet_released", "alexnet_two_columns"])
def test_alexnet_is_what_paper_1_observes(name: str) -> None:
    """Section 3: convolutions have 90 to 95 % of the computation and about 5 % of the parameters, and large
    representations; fully connected layers the rest."""
    cost = cost_of(name)
    convolution, connected = cost.kinds["convolution"], cost.kinds["fully connected"]
    assert set(cost.kinds) == {"convolution", "fully connected"}
    assert len(cost.layers) == 8
    assert 0.90 <= convolution.computation <= 0.95
    assert 0.05 <= connected.computation <= 0.10
    assert convolution.parameters == pytest.approx(0.05, abs=0.015)
    assert connected.parameters == pytest.approx(0.95, abs=0.015)
    assert convolution.activities > 0.95


@pytest.mark.parametrize("rank", [0, 6])
def test_blocks_and_projections_are_counted_as_a_run_computes_them(rank: int) -> None:
    """LeNet-5's second fully connected layer, of 120 units to 84, in four blocks of 30 to 21."""
    connect = ConnectSpec(blocks=4, rank=rank or None)
    model = ModelSpec(name="lenet5")
    images = images_of(model)
    assert images is not None
    cost = profile_model(model, images, algorithm=HybridConfig(connect=connect), num_workers=2)
    layers = {layer.name: layer for layer in cost.layers}
    weights, projections = 84 * (30 + 3 * rank), 4 * rank * 30
    for name, products, biases, outputs in (("fc2", weights, 84, 84), ("fc2.projection", projections, 0, 4 * rank)):
        layer = layers.pop(name, None)
        if layer is None:
            assert not products
            continue
        assert (layer.kind, layer.cost.parameters) == ("fully connected", products + biases)
        assert (layer.cost.forward_flops, layer.cost.backward_flops) == (2 * products, 4 * products)
        assert layer.cost.activities == outputs
    assert [*layers] == ["conv1", "conv2", "fc1", "fc3"]
    assert cost.whole.parameters == sum(cost.variables) == 61_706 - 84 * 120 + weights + projections
    assert cost.divided is not None
    assert cost.divided.whole == cost.whole.parameters - 2_572  # of the convolutions
    assert cost.divided.whole / 2 <= cost.divided.most < 0.51 * cost.divided.whole
    assert cost.divided.built == cost.divided.whole + (0 if rank else 84 * 90)


def test_alexnet_by_hand() -> None:
    cost = cost_of("alexnet")
    assert cost.whole.parameters == 61_100_840
    first, last = cost.layers[0], cost.layers[-1]
    assert (first.name, last.name) == ("features.0", "classifier.6")
    assert first.cost.forward_flops == 2 * 64 * 55 * 55 * 3 * 11 * 11
    assert first.cost.backward_flops == first.cost.forward_flops  # no gradient with respect to the image
    assert first.cost.activities == 64 * 55 * 55
    assert last.cost.forward_flops == 2 * 4096 * 1000
    assert last.cost.backward_flops == 2 * last.cost.forward_flops
    assert last.share.parameters == last.cost.parameters / 61_100_840 == 4_097_000 / 61_100_840


def test_groups_layers_used_twice_and_what_lies_in_no_layer() -> None:
    cost = cost_of(f"{USERS}:odd", Images(shape=(3, 8, 8), classes=5))
    layers = {layer.name: layer for layer in cost.layers}
    assert list(layers) == ["", "first", "grouped", "norm"]
    once = 2 * 8 * 8 * 4 * (4 // 2) * 9
    assert layers["grouped"].cost.forward_flops == 2 * once
    assert layers["grouped"].cost.backward_flops == 4 * once
    assert layers["grouped"].cost.parameters == 4 * 2 * 9
    assert layers["grouped"].cost.activities == 2 * 4 * 8 * 8
    assert layers["norm"].kind == "normalisation"
    assert layers["norm"].cost.forward_flops == 0
    own = layers[""]
    assert own.kind == "other"
    assert own.cost.parameters == 4 + 5 * 4 + 5  # the scale, and the layer that is read and never called
    assert own.cost.forward_flops == 2 * 4 * 5
    assert own.cost.backward_flops == 2 * own.cost.forward_flops


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1", "vit_b_32", "swin_v2_t"])
def test_nothing_is_lost_or_counted_twice(name: str) -> None:
    """The layers add up to the whole model, whose forward pass torch counts without knowing of layers."""
    cost = cost_of(name)
    model = build_model(ModelSpec(name=name), 1000, (3, 224, 224), 0).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(2, 3, 224, 224, device="meta"))
    assert cost.whole.forward_flops == sum(layer.cost.forward_flops for layer in cost.layers)
    assert cost.whole.forward_flops == counter.get_total_flops() // 2
    assert cost.whole.parameters == sum(parameter.numel() for parameter in model.parameters())
    for field in ("computation", "parameters", "activities"):
        assert sum(getattr(layer.share, field) for layer in cost.layers) == pytest.approx(1)
        assert sum(getattr(share, field) for share in cost.kinds.values()) == pytest.approx(1)


def test_the_backward_pass_is_twice_the_forward_but_for_the_image() -> None:
    cost = cost_of("resnet18")
    assert cost.whole.backward_flops == 2 * cost.whole.forward_flops - cost.layers[0].cost.forward_flops


def test_attention_is_a_kind_of_its_own() -> None:
    assert kind_of(ShiftedWindowAttentionV2(8, [2, 2], [0, 0], 2)) == "attention"
    assert kind_of(nn.MultiheadAttention(8, 2)) == "attention"
    assert [kind_of(each) for each in (nn.Conv3d(1, 1, 1), nn.Linear(1, 1), nn.GroupNorm(1, 1), nn.ReLU())] == [
        "convolution", "fully connected", "normalisation", "other",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"task": "segmentation", "model": "unet", "data": f"{SETS}:shapes_in_images"}, {"convolution"}),
        ({"task": "detection", "data": {"name": f"{SETS}:boxes_in_images", "loader_processes": 0}}, {"convolution"}),
        ({"task": HIDDEN, "model": BERT, "data": f"{SETS}:sentences"}, {"fully connected", "attention"}),
        ({"task": "tests.training.test_preflight:Graded", "model": WORDS, "data": GRADED}, {"fully connected"}),
    ],
    ids=["segmentation", "detection", "transformers", "own"],
)
def test_any_tasks_model_is_counted_on_its_data(fields: dict, kinds: set[str]) -> None:
    cost = profile_spec(TrainSpec.model_validate(fields))
    assert kinds <= {kind for kind, share in cost.kinds.items() if share.computation > 0}
    assert cost.whole.parameters > 0
    assert cost.whole.backward_flops > cost.whole.forward_flops


def test_a_model_that_asks_for_values_is_refused() -> None:
    with pytest.raises(SpecRejected, match="cannot be counted without data"):
        cost_of(f"{USERS}:curious", Images(shape=(1, 8, 8), classes=5))


def test_a_users_folder_is_on_the_path_only_meanwhile() -> None:
    folder = str(Path(__file__).parents[2] / "examples" / "own_code")
    model, images = ModelSpec(name="tinynet:tiny_net", kwargs={"width": 8}), Images(shape=(1, 28, 28), classes=3)
    assert profile_model(model, images, folder).whole.parameters > 0
    assert folder not in sys.path


def test_the_images_that_models_and_sets_have() -> None:
    assert images_of(ModelSpec(name="lenet5")) == Images(shape=(1, 28, 28), classes=10)
    assert images_of(ModelSpec(name="vgg11")) == Images(shape=(3, 224, 224), classes=1000)
    cropped = DataSpec(name="imagenet", random_resized_crop=160)
    assert images_of(ModelSpec(), cropped) == Images(shape=(3, 160, 160), classes=1000)
    assert images_of(ModelSpec(), DataSpec(name="image_folder")) is None
    assert set(IMAGES) == set(NUM_TRAIN)
    with open_dataset(DataSpec(name="digits"), 0) as data:
        assert IMAGES["digits"] == (*data.facts.inputs, data.facts.classes)


def test_mnist_is_what_it_is_said_to_be(mnist_root: Path) -> None:
    with open_dataset(DataSpec(name="mnist", root=str(mnist_root), limit=1), 0) as data:
        assert IMAGES["mnist"] == (*data.facts.inputs, data.facts.classes)
