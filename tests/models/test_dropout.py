"""A mask belongs to (seed, epoch, example, layer, unit)."""

import copy

import numpy as np
import pytest
import torch
import torchvision.models
from torch import nn
from torchvision.ops import StochasticDepth

from trainers.models.dropout import ExampleDropout, replace_dropout

IDS = np.arange(40, 72)


def masks(
    layer: nn.Module, shape: tuple[int, ...], seed: int = 0, epoch: int = 0, ids: np.ndarray = IDS
) -> torch.Tensor:
    model = nn.Sequential(copy.deepcopy(layer))
    context = replace_dropout(model, seed)
    context.set(epoch, ids)
    output: torch.Tensor = model(torch.ones(len(ids), *shape))
    return output


def test_an_example_has_the_same_mask_in_any_minibatch() -> None:
    whole = masks(nn.Dropout(0.3), (6, 5))
    picked = np.array([30, 2, 9])
    assert torch.equal(masks(nn.Dropout(0.3), (6, 5), ids=IDS[picked]), whole[picked])
    assert torch.equal(masks(nn.Dropout(0.3), (6, 5)), whole)
    assert not torch.equal(masks(nn.Dropout(0.3), (6, 5), epoch=1), whole)
    assert not torch.equal(masks(nn.Dropout(0.3), (6, 5), seed=1), whole)
    assert not torch.equal(whole[0], whole[1])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_rate_is_right_and_what_stays_is_scaled(p: float) -> None:
    output = masks(nn.Dropout(p), (1000,))
    kept = output > 0
    assert float(kept.float().mean()) == pytest.approx(1 - p, abs=0.01)
    assert torch.allclose(output[kept], torch.tensor(1 / (1 - p)))
    assert masks(nn.Dropout(1.0), (10,)).sum() == 0
    assert torch.equal(masks(nn.Dropout(0.0), (10,)), torch.ones(32, 10))


def test_gradients_flow_through_what_was_kept() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    replace_dropout(model, 0).set(0, IDS)
    inputs = torch.ones(32, 50, requires_grad=True)
    output = model(inputs)
    output.sum().backward()
    assert inputs.grad is not None
    assert torch.equal(inputs.grad, output.detach())


@pytest.mark.parametrize(("layer", "shape"), [(nn.Dropout1d(0.5), (64, 7)), (nn.Dropout2d(0.5), (64, 3, 3))])
def test_whole_channels(layer: nn.Module, shape: tuple[int, ...]) -> None:
    output = masks(layer, shape).flatten(2)
    assert torch.equal(output, output[..., :1].expand_as(output))
    assert float((output > 0).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_stochastic_depth_drops_whole_examples() -> None:
    output = masks(StochasticDepth(0.5, "row"), (3, 4), ids=np.arange(500)).flatten(1)
    assert torch.equal(output, output[:, :1].expand_as(output))
    assert float((output > 0).float().mean()) == pytest.approx(0.5, abs=0.1)


def test_evaluation_is_the_identity_and_needs_no_examples() -> None:
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    replace_dropout(model, 0)
    assert not model[0].training
    assert torch.equal(model(torch.ones(3, 4)), torch.ones(3, 4))
    with pytest.raises(AssertionError, match="must be called"):
        model.train()(torch.ones(3, 4))


def test_layers_and_repeated_calls_have_masks_of_their_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.again = self.drop
            self.other = nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [self.drop(x), self.again(x), self.other(x)]

    model = Twice()
    context = replace_dropout(model, 0)
    assert model.drop is model.again
    ones = torch.ones(32, 100)
    context.set(0, IDS)
    first = model(ones)
    context.set(0, IDS)
    second = model(ones)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert float((first[a] == first[b]).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_windows_of_an_example_lie_beside_each_other() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    replace_dropout(model, 0).set(0, IDS)
    windows = model(torch.ones(32 * 4, 9))
    assert torch.equal(windows.view(32, 36), masks(nn.Dropout(0.5), (36,)))


def test_rows_that_belong_to_no_single_example_are_drawn_by_the_virtual_worker() -> None:
    model = nn.Sequential(nn.Dropout(0.5))
    replace_dropout(model, 0).set(0, IDS)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model(torch.ones(33, 9)))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_torchvisions_dropouts_are_all_replaced_and_names_stay() -> None:
    for name in ("alexnet", "efficientnet_b0"):
        model = torchvision.models.get_model(name, num_classes=10)
        names = list(model.state_dict())
        context = replace_dropout(model, 0)
        assert context.not_replaced == ()
        assert list(model.state_dict()) == names
        assert not [m for m in model.modules() if isinstance(m, nn.Dropout | StochasticDepth)]
        assert [m for m in model.modules() if isinstance(m, ExampleDropout)]


def test_what_cannot_be_replaced_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({"a": nn.AlphaDropout(0.5), "b": nn.MultiheadAttention(4, 2, dropout=0.1), "c": nn.ReLU()})
    assert replace_dropout(model, 0).not_replaced == ("a", "b")
    assert "a, b" in caplog.text
