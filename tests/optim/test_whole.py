"""What updating parameters as wholes rests on: cuts between them, norms on any number of threads, who is exempt."""

import itertools

import pytest
import torch
from torch import nn

from trainers.errors import SpecRejected
from trainers.models.layout import lay_out
from trainers.models.networks.gpt import Gpt
from trainers.optim.buffers import Buffers
from trainers.optim.decay import exempt_names
from trainers.optim.parameter import Parameter
from trainers.optim.roles import hidden_matrices
from trainers.optim.rule import ParameterRule, ParameterStep, norm
from trainers.optim.slices import cuts_at
from trainers.spec import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    AnyOptimizer,
    LambSpec,
    LarsSpec,
    LionSpec,
    MomentumSpec,
    MuonSpec,
    NesterovSpec,
    RmspropSpec,
    SgdSpec,
    TrainSpec,
)

USUAL = (SgdSpec(), MomentumSpec(), NesterovSpec(), RmspropSpec(), AdagradSpec(), AdamSpec(), AdamWSpec(), LionSpec())


@pytest.mark.parametrize(
    ("places", "count", "expected"),
    [
        ([0, 100, 200, 300, 400], 2, [0, 200, 400]),
        ([0, 10, 20, 1000, 1010], 3, [0, 20, 1000, 1010]),
        ([0, 10, 20, 30], 3, [0, 10, 20, 30]),
        ([0, 990, 1000], 2, [0, 990, 1000]),
        ([0, 10], 3, [0, 10, 10, 10]),
    ],
)
def test_cuts_are_as_near_to_equal_as_the_places_allow(places: list[int], count: int, expected: list[int]) -> None:
    assert cuts_at(places, count) == [slice(a, b) for a, b in itertools.pairwise(expected)]


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Flatten(), nn.Linear(8, 70), nn.Linear(70, 10))


def test_no_shard_has_a_part_of_a_parameter() -> None:
    layout = lay_out(net(), 3, keeps_parameters_whole=True)
    held = [layout.names_in(shard) for shard in layout.shards]
    assert [name for names in held for name in names] == list(layout.names)
    assert all(held)
    for parameter in layout.parameters(()):
        assert sum(s.start <= parameter.start and parameter.span.stop <= s.stop for s in layout.shards) == 1
    assert layout.shards[0].start == 0
    assert layout.shards[-1].stop == layout.numel
    with pytest.raises(ValueError, match="the model has 8 variables, which are not divided"):
        lay_out(net(), 9, keeps_parameters_whole=True)


def test_a_norm_is_the_same_on_any_number_of_threads() -> None:
    x, threads = torch.randn(200_003, generator=torch.Generator().manual_seed(1)), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(norm(x).item())
    finally:
        torch.set_num_threads(threads)
    assert len(set(found)) == 1
    assert found[0] == pytest.approx(float(x.double().norm()), rel=1e-6)


def test_exempt_are_all_norms_on_request_and_hidden_is_what_lies_between_embedding_and_output() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    assert exempt_names(model, ["batch_norm"]) == {"1.weight", "1.bias"}
    assert exempt_names(model, ["norms"]) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert hidden_matrices(model) == {"0.weight", "2.weight"}
    gpt = Gpt(vocabulary=11, context=4, layers=1, heads=2, width=8)
    assert hidden_matrices(gpt) == {
        f"blocks.0.{name}.weight" for name in ("attention.parts", "attention.out", "expand", "out")
    }


def updated(rule: ParameterRule, w: list[float], g: list[float], decay: float, is_exempt: bool) -> list[float]:
    vector = torch.tensor(w, dtype=torch.float32)
    buffers = Buffers(vector, {name: torch.zeros_like(vector) for name in rule.state_names})
    step = ParameterStep(Parameter(0, (len(w),)), 0.5, decay, is_exempt)
    rule.apply(buffers, torch.tensor(g, dtype=torch.float32), buffers, step)
    return vector.tolist()


def test_trust_ratios_by_hand() -> None:
    """|w| = 5, |g| = 2, decay 0.2: LARS has r = 0.1 5 / (2 + 0.2 5); LAMB begins with the sign, |u| = sqrt 2."""
    lars = LarsSpec(trust=0.1, epsilon=1e-12).build()
    assert isinstance(lars, ParameterRule)
    r = 0.1 * 5 / 3
    assert updated(lars, [3, 4], [2, 0], 0.2, False) == pytest.approx([3 - 0.5 * r * 2.6, 4 - 0.5 * r * 0.8])
    assert updated(lars, [3, 4], [2, 0], 0.0, True) == pytest.approx([2, 4])
    assert updated(lars, [0, 0], [2, 0], 0.2, False) == pytest.approx([-1, 0])
    lamb = LambSpec(epsilon=1e-12).build()
    assert isinstance(lamb, ParameterRule)
    assert updated(lamb, [3, 4], [2, -7], 0.0, False) == pytest.approx([3 - 0.5 * 5 / 2**0.5, 4 + 0.5 * 5 / 2**0.5])
    assert updated(lamb, [3, 4], [2, -7], 0.0, True) == pytest.approx([2.5, 4.5])


@pytest.mark.parametrize("spec", [*USUAL, LarsSpec(), LambSpec(), MuonSpec()], ids=lambda spec: spec.name)
def test_the_memory_told_is_that_of_the_states(spec: AnyOptimizer) -> None:
    assert spec.num_states == len(spec.build().state_names)
    assert spec.whole == isinstance(spec.build(), ParameterRule)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"name": "torch.optim:LBFGS"}, "LBFGS needs a closure .*; take another class"),
        ({"name": "torch.optim:NAdam", "kwargs": {"colour": 1}}, "NAdam does not make a step.*colour"),
        ({"name": "torch.nn:Linear"}, "is no torch.optim.Optimizer"),
        ({"name": "tests.optim.test_whole:Restless"}, "changes its own options"),
        ({"name": "tests.optim.test_whole:Large"}, "state 'all' that is no number"),
    ],
)
def test_a_class_that_cannot_be_kept_is_refused(optimizer: dict[str, object], said: str) -> None:
    spec = TrainSpec.model_validate({"optimizer": optimizer}).optimizer
    with pytest.raises(SpecRejected, match=said):
        spec.build()


class Restless(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.param_groups[0]["distance"] = 1.0


class Large(torch.optim.SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        (parameter,) = self.param_groups[0]["params"]
        self.state[parameter]["all"] = torch.zeros(100)


def test_arguments_that_stand_elsewhere_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lr is not given here; set optimizer\.lr"):
        TrainSpec.model_validate({"optimizer": {"name": "torch.optim:SGD", "kwargs": {"lr": 1}}})
