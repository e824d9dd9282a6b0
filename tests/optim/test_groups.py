"""Parameters with hyperparameters of their own."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from trainers.errors import SpecRejected
from trainers.models.layout import lay_out
from trainers.optim import update
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Group, Optimizer, complement
from trainers.optim.rule import initial_state
from trainers.optim.slices import spans
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import AdamWSpec, MomentumSpec, TrainSpec
from trainers.training.optimizer import build_optimizer, ends, optimizer_of
from trainers.training.setup import set_up
from trainers.training.shard_setup import ShardSetup

CPU = torch.device("cpu")
NUMEL = 64 * 30


def random_groups(dice: random.Random) -> list[tuple[slice, ...]]:
    """Two groups of parameters that begin, as they do in a layout, at multiples of 16 elements."""
    marks = sorted(dice.sample(range(NUMEL // 16), 16))
    pieces = [slice(16 * a, 16 * b) for a, b in zip(marks[::2], marks[1::2], strict=True)]
    return [tuple(pieces[::2]), tuple(pieces[1::2])]


def updated(optimizer: Optimizer, count: int, in_place: bool = False) -> list[torch.Tensor]:
    """Parameters and states after three updates in `count` slices."""
    generator = torch.Generator().manual_seed(5)
    w, *g = (torch.randn(NUMEL, generator=generator) for _ in range(4))
    now = Buffers(w, initial_state(optimizer.rule, w))
    for step, gradient in enumerate(g):
        then = now if in_place else Buffers(torch.full_like(w, torch.nan), initial_state(optimizer.rule, w))
        for cut in spans(NUMEL, count):
            mine = SliceUpdate(optimizer.within(cut), cut.stop - cut.start, CPU)
            mine.apply(
                [Contribution(TensorGradient(gradient[cut]), 7, 0.1 / (1 + step))], now.part(cut), then.part(cut)
            )
        now = then
    return now.vectors


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("spec", [MomentumSpec(weight_decay=0.1), AdamWSpec()], ids=["momentum", "adamw"])
def test_each_group_has_the_bits_of_a_vector_of_its_own(
    spec: MomentumSpec | AdamWSpec, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the neighbours are, however the vector is cut, in place or beside."""
    dice = random.Random(seed)
    first, second = random_groups(dice)
    option = {"momentum": 0.3} if isinstance(spec, MomentumSpec) else {"betas": (0.5, 0.7)}
    other = type(spec).model_validate(spec.model_dump() | option)
    groups = (Group(other.build(), 0.3, 2.0, first), Group(spec.build(), 0.0, 0.25, second))
    mixed = Optimizer(spec.build(), spec.weight_decay, (slice(64, 320),), groups)
    expected = [torch.empty(NUMEL) for _ in range(1 + len(mixed.state_names))]
    for group in mixed.by_group(NUMEL):
        everywhere = replace(group, spans=(slice(0, NUMEL),))
        for vector, found in zip(expected, updated(replace(mixed, groups=(everywhere,)), 1), strict=True):
            for span in group.spans:
                vector[span] = found[span]
    monkeypatch.setattr(update, "CHUNK", 256)
    for count in (1, 2, 3, 7):
        for in_place in (False, True):
            found = updated(mixed, count, in_place)
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), (count, in_place)


def test_the_rest_is_what_no_group_has() -> None:
    assert complement([slice(30, 40), slice(0, 10)], 50) == (slice(10, 30), slice(40, 50))
    assert complement([], 50) == (slice(0, 50),)
    assert complement([slice(0, 50)], 50) == ()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def spec(groups: list[dict[str, object]], **optimizer: object) -> TrainSpec:
    section = {"name": "momentum", "lr": 0.04, "weight_decay": 0.01, "groups": groups} | optimizer
    return TrainSpec.model_validate({"data": "digits", "optimizer": section})


def test_a_parameter_belongs_to_the_first_group_that_matches_it() -> None:
    layout = lay_out(net())
    found = optimizer_of(
        spec([{"match": "0.*", "lr": 0.01}, {"match": ["*.weight"], "momentum": 0.5}]), 0, net(), layout
    )
    assert [layout.names_in(*group.spans) for group in found.groups] == [
        ("0.weight", "0.bias"),
        ("1.weight", "2.weight"),
    ]
    assert [group.rate for group in found.groups] == [0.25, 1.0]
    assert layout.names_in(*found.exempt) == ("1.weight", "1.bias")
    again = build_optimizer(spec([{"match": "x"}]), 0, ends(found.exempt), [ends(found.groups[0].spans)])
    assert again.groups[0].spans == found.groups[0].spans


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"match": "3.*"}], "3.* is the name of no parameter; the model has 0.weight"),
        ([{"match": "0.*"}, {"match": "0.bias"}], "0.bias is the name of no parameter that no group before it has"),
    ],
)
def test_a_group_without_parameters_is_refused(groups: list[dict[str, object]], said: str) -> None:
    with pytest.raises(SpecRejected, match=r"optimizer\.groups.*match") as refused:
        optimizer_of(spec(groups), 0, net(), lay_out(net()))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ({"name": "sgd", "groups": [{"match": "*", "momentum": 0.5}]}, "groups.0: sgd has no momentum; leave it out"),
        ({"name": "adam", "groups": [{"match": "*", "momentum": 0.5}]}, "groups.0: adam has no momentum"),
        ({"name": "sgd", "groups": [{"match": "*", "lr": 0}]}, "greater than 0"),
        ({"name": "sgd", "groups": [{"match": ""}]}, "at least 1"),
    ],
)
def test_an_option_that_the_optimizer_lacks_is_refused(optimizer: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainSpec.model_validate({"data": "digits", "optimizer": optimizer})


def test_explain_tells_each_groups_rate() -> None:
    from trainers.spec.recipe import explain

    group = {"match": ["0.*", "1.*"], "lr": 0.01, "momentum": 0.5}
    fields = {"data": "digits", "batch": {"per_worker": 8, "base": 4}, "scaling": "linear"}
    found = explain(TrainSpec.model_validate(fields | {"optimizer": spec([group]).optimizer.model_dump()}), 1000)
    told = found.quantities["group_0"]
    assert told.value == 0.01 * found.quantities["rate_factor"].value == 0.04
    assert told.formula == "learning rate of 0.*, 1.*: its lr x factor; weight_decay 0.01, momentum 0.5"


@pytest.mark.parametrize("shards", [1, 3])
def test_a_shard_updates_its_slice_as_a_worker_would(shards: int) -> None:
    """It has no model: the spans come from a worker's account of the run."""
    optimizer = spec([{"match": "*.bias", "lr": 0.01}, {"match": "*2.*", "momentum": 0.5}]).optimizer.model_dump()
    fields = {"data": "digits", "model": "mlp", "algorithm": "downpour", "ps": shards, "optimizer": optimizer}
    train = TrainSpec.model_validate(fields)
    setup = set_up(train, None)
    with setup.dataset:
        told = setup.run_layout()
    assert len(told.parameter_groups) == 2
    for index in range(shards):
        shard = ShardSetup(train, told, index)
        found, expected = shard.config(shard.span).update.optimizer, setup.optimizer.within(shard.span)
        assert [(g.rate, g.spans) for g in found.groups] == [(g.rate, g.spans) for g in expected.groups]
        assert found.exempt == expected.exempt


def test_a_groups_schedule_takes_the_place_of_the_runs() -> None:
    """Krizhevsky's biases: a tenth after half of the run, while the weights fall at each quarter."""
    group = {"match": "*.bias", "lr": 0.08, "schedule": {"name": "step", "epochs": [2], "factor": 0.1}}
    train = TrainSpec.model_validate(
        {"data": "digits", "schedule": "krizhevsky", "epochs": 4, "optimizer": spec([group]).optimizer.model_dump()}
    )
    (found,) = optimizer_of(train, 100, net(), lay_out(net())).groups
    rates = [train.learning_rate(100)(seen) * found.rate_at(seen) for seen in (0, 100, 199, 200, 399)]
    assert rates == pytest.approx([0.08, 0.08, 0.08, 0.008, 0.008])


@pytest.mark.parametrize(
    ("more", "group", "said"),
    [
        ({"equation": 10}, {"schedule": "cosine"}, "momentum_correction follows the run's rate"),
        ({}, {"schedule": "one_cycle"}, "the warm-up is the run's"),
        ({}, {"schedule": "cosine", "frozen": True}, "leave schedule out, or frozen"),
    ],
)
def test_a_schedule_that_a_group_cannot_have_is_refused(
    more: dict[str, object], group: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        spec([{"match": "*", **group}], **more)
