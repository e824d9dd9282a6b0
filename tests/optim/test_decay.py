"""The parameters without weight decay, and their spans."""

import itertools

import pytest
import torch
from torch import nn

from trainers.models.layout import lay_out
from trainers.optim.decay import exempt_names
from trainers.spec import Exempt, MomentumSpec, SgdSpec


class Net(nn.Module):
    """A bit of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5)
        self.group, self.plain = nn.GroupNorm(1, 5), nn.BatchNorm2d(5, affine=False)
        self.block = nn.Sequential(nn.Linear(5, 17), nn.BatchNorm1d(17))
        self.attention = nn.MultiheadAttention(4, 1)


NORMS = {"norm.weight", "norm.bias", "block.1.weight", "block.1.bias"}
BIASES = {
    "conv.bias", "norm.bias", "group.bias", "block.0.bias", "block.1.bias", "attention.in_proj_bias",
    "attention.out_proj.bias",
}  # fmt: skip


@pytest.mark.parametrize(
    ("exempt", "expected"),
    [((), set()), (("batch_norm",), NORMS), (("biases",), BIASES), (("batch_norm", "biases"), NORMS | BIASES)],
)
def test_names(exempt: tuple[Exempt, ...], expected: set[str]) -> None:
    assert exempt_names(Net(), exempt) == expected


def test_batch_norm_is_exempt_by_default() -> None:
    assert SgdSpec().no_decay == MomentumSpec().no_decay == ("batch_norm",)
    assert exempt_names(nn.BatchNorm1d(3), ("batch_norm",)) == {"weight", "bias"}


@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
@pytest.mark.parametrize("names", [NORMS, BIASES, NORMS | BIASES, set()])
def test_their_spans_hold_them_and_nothing_else(placement: str, names: set[str]) -> None:
    model = Net()
    layout = lay_out(model, 2, placement)
    flat = torch.zeros(layout.numel)
    spans = layout.spans_of(names)
    for span in spans:
        assert not flat[span].any()
        flat[span] = 1
    for name, view in layout.named(flat).items():
        assert bool(view.all()) == bool(view.any()) == (name in names)
    assert all(a.stop < b.start for a, b in itertools.pairwise(spans))
