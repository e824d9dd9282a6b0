"""The fused update: chunks, divisors, decay; and how vectors are cut."""

import random

import pytest
import torch

from trainers.collectives.reduction_tree import TreeSum
from trainers.optim import slices, update
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import initial_state
from trainers.optim.slices import aligned, spans, within
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import MomentumSpec, SgdSpec

CPU = torch.device("cpu")


def test_spans_are_contiguous_nearly_equal_and_aligned() -> None:
    dice = random.Random(5)
    for _ in range(300):
        numel, count = dice.randrange(5000), dice.randint(1, 9)
        cuts = spans(numel, count)
        ends = [0, *(cut.stop for cut in cuts)]
        assert [cut.start for cut in cuts] == ends[:-1]
        assert ends[-1] == numel
        assert all(cut.start % slices.ALIGN == 0 or cut.start == numel for cut in cuts)
        assert max(c.stop - c.start for c in cuts) - min(c.stop - c.start for c in cuts) <= 2 * slices.ALIGN
        assert aligned(numel) % slices.ALIGN == 0
        assert 0 <= aligned(numel) - numel < slices.ALIGN


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    def result() -> Buffers:
        rule, numel = MomentumSpec().build(), 64 * 20 + 3
        generator = torch.Generator().manual_seed(1)
        now = Buffers(torch.randn(numel, generator=generator), {"momentum": torch.randn(numel, generator=generator)})
        then = Buffers(torch.empty(numel), initial_state(rule, torch.empty(numel)))
        leaves = {(i, i + 1): torch.randn(numel, generator=generator) for i in range(3)}
        more = [Contribution(TreeSum(3, leaves), 9, 0.1), Contribution(TensorGradient(leaves[0, 1]), 1, 0.2, decays=2)]
        SliceUpdate(Optimizer(rule, 0.01), numel, CPU).apply(more, now, then)
        return then

    whole = result()
    monkeypatch.setattr(update, "CHUNK", 128)
    chunked = result()
    assert torch.equal(whole.params, chunked.params)
    assert torch.equal(whole.state["momentum"], chunked.state["momentum"])


def test_divided_once_and_decay_added_after() -> None:
    w, g = torch.tensor([2.0]), torch.tensor([10.0])
    then = Buffers(torch.empty(1), {})
    one = SliceUpdate(Optimizer(SgdSpec().build(), 0.5), 1, CPU)
    one.apply([Contribution(TensorGradient(g), divisor=5, lr=1.0)], Buffers(w, {}), then)
    assert then.params.tolist() == [2.0 - (10 / 5 + 0.5 * 2)]
    one.apply([Contribution(TensorGradient(g), divisor=5, lr=1.0, decays=3)], Buffers(w, {}), then)
    assert then.params.tolist() == [2.0 - (10 / 5 + 3 * 0.5 * 2)]
    assert (w.tolist(), g.tolist()) == ([2.0], [10.0])  # only read


def test_an_empty_slice_is_no_trouble() -> None:
    nothing = Buffers(torch.empty(0), {})
    update_ = SliceUpdate(Optimizer(SgdSpec().build(), 0.1), 0, CPU)
    update_.apply([Contribution(TensorGradient(torch.empty(0)), 1, 0.1)], nothing, nothing)


@pytest.mark.parametrize("seed", range(5))
def test_exempt_parts_do_not_decay_and_the_cut_does_not_show(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have the bits of a run without exemptions, the exempt ones those of a run without decay; in any
    chunks and slices. So too where the gradient is a sum that is made piece by piece."""
    dice = random.Random(seed)
    numel, generator = 64 * 30, torch.Generator().manual_seed(seed)
    marks = sorted(dice.sample(range(numel // 16), 12))
    exempt = [slice(16 * a, 16 * b) for a, b in zip(marks[::2], marks[1::2], strict=True)]
    w, *g = (torch.randn(numel, generator=generator) for _ in range(6))
    contributions = [([g[0]], 7, 0.1, 1), ([g[1]], 1, 0.2, 2), (g[2:], 5, 0.1, 1)]

    def run(decay: float, exempt: list[slice], count: int = 1) -> torch.Tensor:
        out = torch.empty(numel)
        for cut in spans(numel, count):
            optimizer = Optimizer(SgdSpec().build(), decay, tuple(exempt)).within(cut)
            mine = SliceUpdate(optimizer, cut.stop - cut.start, CPU)
            parts = [
                Contribution(TreeSum(len(of), {(i, i + 1): one[cut] for i, one in enumerate(of)}), divisor, lr, decays)
                for of, divisor, lr, decays in contributions
            ]
            mine.apply(parts, Buffers(w[cut], {}), Buffers(out[cut], {}))
        return out

    expected, without = run(0.3, []), run(0.0, [])
    for part in exempt:
        expected[part] = without[part]
    assert torch.equal(run(0.3, exempt), expected)
    monkeypatch.setattr(update, "CHUNK", 128)
    for count in (1, 2, 3, 7):
        assert torch.equal(run(0.3, exempt, count), expected)


def test_within_clips_and_counts_from_the_start() -> None:
    parts = [slice(0, 10), slice(20, 30), slice(50, 60)]
    assert within(parts, slice(5, 25)) == (slice(0, 5), slice(15, 20))
    assert within(parts, slice(30, 50)) == ()
