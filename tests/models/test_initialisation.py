"""The initial weights of paper 4, and recomputed batch-norm statistics."""

import math

import pytest
import torch
from torch import nn

from trainers.errors import SpecRejected
from trainers.models.initialisation import he_initialise
from trainers.models.registry import build_model
from trainers.models.statistics import recomputed_statistics
from trainers.spec import ModelSpec

SHAPE = (3, 32, 32)


def built(name: str, seed: int = 0, **options: object) -> nn.Module:
    return build_model(ModelSpec.model_validate({"name": name, **options}), 10, SHAPE, seed)


@pytest.mark.parametrize(("name", "last", "blocks"), [("resnet18", "bn2", 8), ("resnet50", "bn3", 16)])
def test_zero_gamma_is_the_last_norm_of_each_residual_block(name: str, last: str, blocks: int) -> None:
    norms = {n: m for n, m in built(name, zero_gamma=True).named_modules() if isinstance(m, nn.BatchNorm2d)}
    zero = {n for n, m in norms.items() if not m.weight.any()}
    assert zero == {n for n in norms if n.startswith("layer") and n.endswith(f".{last}")}
    assert len(zero) == blocks
    assert all(bool((m.weight == 1).all()) for n, m in norms.items() if n not in zero)


def test_a_block_then_begins_as_its_shortcut() -> None:
    block = built("resnet18", zero_gamma=True).layer1[0]
    x = torch.rand(2, 64, 8, 8)
    assert torch.equal(block(x), x)


def test_he_is_that_of_the_paper() -> None:
    model = built("resnet18", init="he", seed=3)
    for conv in (m for m in model.modules() if isinstance(m, nn.Conv2d)):
        fan_out = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
        assert conv.weight.mean().abs() < 4 * math.sqrt(2 / fan_out / conv.weight.numel())
        assert conv.weight.std().item() == pytest.approx(
            math.sqrt(2 / fan_out), rel=4 / math.sqrt(2 * conv.weight.numel())
        )
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.05)
    assert not model.fc.bias.any()


def test_he_on_a_small_model_leaves_the_layers_between_alone() -> None:
    plain, he = built("lenet5", seed=5), built("lenet5", seed=5, init="he")
    assert torch.equal(plain.fc1.weight, he.fc1.weight)
    assert not torch.equal(plain.conv1.weight, he.conv1.weight)
    assert not he.conv1.bias.any()
    assert he.fc3.weight.std().item() == pytest.approx(0.01, rel=0.2)


def test_a_convolution_may_be_the_last_layer() -> None:
    model = build_model(ModelSpec(name="squeezenet1_1", init="he"), 10, (3, 64, 64), 0)
    assert model.classifier[1].weight.std().item() == pytest.approx(0.01, rel=0.05)


def test_both_are_functions_of_the_seed_and_leave_torchs_generator_alone() -> None:
    state = torch.random.get_rng_state()
    one, same, other = (built("resnet18", seed, init="he", zero_gamma=True) for seed in (1, 1, 2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def test_what_has_no_such_layers_is_refused() -> None:
    with pytest.raises(SpecRejected, match=r"model\.zero_gamma: lenet5 has none"):
        built("lenet5", zero_gamma=True)
    with pytest.raises(SpecRejected, match=r"model\.init: net has no last layer with 10"):
        he_initialise("net", nn.Sequential(nn.Linear(3, 4)), 10)


class Net(nn.Module):
    """Dropout in front of a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm, self.plain = nn.Dropout(0.5), nn.BatchNorm2d(3, momentum=0.2), nn.InstanceNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.norm(self.drop(x)))


def test_recomputed_statistics_are_the_mean_over_minibatches() -> None:
    net = Net().eval()
    net.norm.running_mean.fill_(7)
    generator = torch.Generator().manual_seed(0)
    minibatches = [torch.randn(4, 3, 5, 5, generator=generator) + i for i in range(3)]
    found = recomputed_statistics(net, iter(minibatches), net)
    assert set(found) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    mean = torch.stack([x.mean((0, 2, 3)) for x in minibatches]).mean(0)
    var = torch.stack([x.var((0, 2, 3)) for x in minibatches]).mean(0)
    torch.testing.assert_close(found["norm.running_mean"], mean)
    torch.testing.assert_close(found["norm.running_var"], var)
    assert not any(module.training for module in net.modules())
    assert net.norm.momentum == 0.2


def test_batch_norms_running_average_has_the_papers_momentum() -> None:
    """0.9 in the paper's sense is 0.1 in PyTorch's."""
    assert {m.momentum for m in built("resnet50").modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}
