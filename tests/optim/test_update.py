"""The fused update: chunks, divisors, decay; and how vectors are cut."""

import random

import pytest
import torch

from trainers.optim import update
from trainers.optim.rules import build_rule
from trainers.optim.update import Buffers, Contribution, SliceUpdate, Whole, aligned, spans, zero_state
from trainers.spec import MomentumSpec, SgdSpec
from trainers.transport.canonical import TreeSum

CPU = torch.device("cpu")


def test_spans_are_contiguous_nearly_equal_and_aligned() -> None:
    dice = random.Random(5)
    for _ in range(300):
        numel, count = dice.randrange(5000), dice.randint(1, 9)
        cuts = spans(numel, count)
        ends = [0, *(cut.stop for cut in cuts)]
        assert [cut.start for cut in cuts] == ends[:-1]
        assert ends[-1] == numel
        assert all(cut.start % update.ALIGN == 0 or cut.start == numel for cut in cuts)
        assert max(c.stop - c.start for c in cuts) - min(c.stop - c.start for c in cuts) <= 2 * update.ALIGN
        assert aligned(numel) % update.ALIGN == 0
        assert 0 <= aligned(numel) - numel < update.ALIGN


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> Buffers:
        rule, numel = build_rule(MomentumSpec()), 64 * 20 + 3
        generator = torch.Generator().manual_seed(1)
        now = Buffers(torch.randn(numel, generator=generator), {"momentum": torch.randn(numel, generator=generator)})
        then = Buffers(torch.empty(numel), zero_state(rule, torch.empty(numel)))
        leaves = {(i, i + 1): torch.randn(numel, generator=generator) for i in range(3)}
        more = [Contribution(TreeSum(3, leaves), 9, 0.1), Contribution(Whole(leaves[0, 1]), 1, 0.2, decays=2)]
        SliceUpdate(rule, 0.01, numel, CPU).apply(more, now, then)
        return then

    whole = result()
    monkeypatch.setattr(update, "CHUNK", 128)
    chunked = result()
    assert torch.equal(whole.params, chunked.params)
    assert torch.equal(whole.state["momentum"], chunked.state["momentum"])


def test_divided_once_and_decay_added_after() -> None:
    w, g = torch.tensor([2.0]), torch.tensor([10.0])
    then = Buffers(torch.empty(1), {})
    one = SliceUpdate(build_rule(SgdSpec()), 0.5, 1, CPU)
    one.apply([Contribution(Whole(g), divisor=5, lr=1.0)], Buffers(w, {}), then)
    assert then.params.tolist() == [2.0 - (10 / 5 + 0.5 * 2)]
    one.apply([Contribution(Whole(g), divisor=5, lr=1.0, decays=3)], Buffers(w, {}), then)
    assert then.params.tolist() == [2.0 - (10 / 5 + 3 * 0.5 * 2)]
    assert (w.tolist(), g.tolist()) == ([2.0], [10.0])  # only read


def test_an_empty_slice_is_no_trouble() -> None:
    nothing = Buffers(torch.empty(0), {})
    update_ = SliceUpdate(build_rule(SgdSpec()), 0.1, 0, CPU)
    update_.apply([Contribution(Whole(torch.empty(0)), 1, 0.1)], nothing, nothing)
