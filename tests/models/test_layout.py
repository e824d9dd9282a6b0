"""The layout of parameters: no element twice, round-robin variables within one shard, gaps zero."""

import itertools
import random

import pytest
import torch
from torch import nn

from trainers.models.layout import PARAMETER_ALIGN, Layout, lay_out
from trainers.optim.slices import ALIGN


class Random(nn.Module):
    """Parameters of random shapes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        dice = random.Random(seed)
        for i in range(dice.randint(4, 12)):
            shape = [dice.randint(1, 9) for _ in range(dice.randint(1, 3))]
            setattr(self, f"p{i}", nn.Parameter(torch.randn(shape)))


def owners(layout: Layout) -> list[str | None]:
    """The parameter that each element belongs to."""
    found: list[str | None] = [None] * layout.numel
    for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True):
        for i in range(offset, offset + torch.Size(shape).numel()):
            assert found[i] is None, "two parameters share an element"
            found[i] = name
    return found


@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_parameter_has_its_place(placement: str, num_shards: int, seed: int) -> None:
    model = Random(seed)
    layout = lay_out(model, num_shards, placement)
    owned = owners(layout)
    named = dict(model.named_parameters())
    assert sorted(layout.names) == sorted(named)
    assert all(offset % PARAMETER_ALIGN == 0 for offset in layout.offsets)
    assert len(layout.shards) == num_shards
    ends = [0, *(cut.stop for cut in layout.shards)]
    assert [cut.start for cut in layout.shards] == ends[:-1]
    assert ends[-1] == layout.numel
    assert all(end % ALIGN == 0 for end in ends)
    flat = layout.flatten({name: parameter.detach() for name, parameter in named.items()})
    for name, view in layout.named(flat).items():
        assert torch.equal(view, named[name])
    assert all(float(flat[i]) == 0 for i, name in enumerate(owned) if name is None)


@pytest.mark.parametrize("seed", range(5))
def test_balanced_shards_differ_by_one_unit_at_most(seed: int) -> None:
    sizes = [cut.stop - cut.start for cut in lay_out(Random(seed), 3).shards]
    assert max(sizes) - min(sizes) <= ALIGN


@pytest.mark.parametrize("seed", range(5))
def test_round_robin_gives_whole_variables_in_turn(seed: int) -> None:
    model = Random(seed)
    layout = lay_out(model, 3, "round_robin")
    owned = owners(layout)
    for shard, cut in enumerate(layout.shards):
        mine = {name for name in owned[cut] if name is not None}
        assert mine == {name for i, (name, _) in enumerate(model.named_parameters()) if i % 3 == shard}


def test_one_shard_or_many_the_parameters_lie_alike() -> None:
    one, many = lay_out(Random(1), 1), lay_out(Random(1), 3)
    assert (one.names, one.offsets, one.numel) == (many.names, many.offsets, many.numel)


def test_too_many_shards_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="use at most 1"):
        lay_out(nn.Linear(3, 3), 2)
    with pytest.raises(ValueError, match="2 variables"):
        lay_out(nn.Linear(300, 3), 3, "round_robin")


@pytest.mark.parametrize("least_bytes", [1, 200, 4096, 10**9])
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("placement", ["balanced", "round_robin"])
def test_buckets_cut_the_whole_vector_between_parameters(placement: str, num_shards: int, least_bytes: int) -> None:
    layout = lay_out(Random(2), num_shards, placement)
    buckets = layout.buckets(least_bytes)
    edges = [0, *(bucket.span.stop for bucket in buckets)]
    assert [bucket.span.start for bucket in buckets] == edges[:-1]
    assert edges[-1] == layout.numel
    assert sorted(name for bucket in buckets for name in bucket.names) == sorted(layout.names)
    assert len(buckets) == 1 or all(4 * (b.span.stop - b.span.start) >= least_bytes for b in buckets)
    place = {n: (o, o + torch.Size(s).numel()) for n, o, s in zip(layout.names, layout.offsets, layout.shapes)}  # noqa: B905
    for bucket in buckets:
        for name in bucket.names:
            assert bucket.span.start <= place[name][0] <= place[name][1] <= bucket.span.stop


def test_runs_are_cut_where_the_owner_changes() -> None:
    model = nn.Sequential(*[nn.Linear(3, 5 + i) for i in range(4)])
    layout = lay_out(model)
    owners = {"0.weight": 0, "0.bias": 0, "1.weight": 0, "2.weight": 1, "2.bias": 1, "3.weight": 0, "3.bias": 0}
    runs = layout.runs(owners)  # 1.bias has no owner
    assert [layout.names_in(span)[0] for span in runs] == ["0.weight", "2.weight", "3.weight"]
    assert layout.names_in(runs[0])[-1] == "1.bias"
    assert [runs[0].start, runs[-1].stop] == [0, layout.numel]
    assert all(a.stop == b.start for a, b in itertools.pairwise(runs))
