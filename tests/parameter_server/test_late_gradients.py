"""A shard takes late gradients to the parameters that they meet: the formula written out, and after a death."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainers.optim.late.compensation import EPSILON
from trainers.optim.late.config import MEMORY, Compensation, GapAware, LateSpec
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.memory import MemoryPlan, journal_of, own_ring, read_journal, two_states
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import ReceivedPush, Shard, ShardConfig
from trainers.spec import ClipSpec, SgdSpec

NUMEL, LR, DECAY = 64 * 3 + 7, 0.1, 0.01
CONSTANT, ADAPTIVE = Compensation(adaptive=False, lambda_0=3.0), Compensation(lambda_0=0.5)
RULES = pytest.mark.parametrize("late", [CONSTANT, ADAPTIVE, GapAware()], ids=["constant", "adaptive", "gap"])


def drawn(seed: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


def shard_in(folder: Path, late: LateSpec, clip: ClipSpec | None = None) -> Shard:
    """A shard whose memory outlives it; with what another has left there, it goes on from that."""
    folder.mkdir(exist_ok=True)
    plan = MemoryPlan(folder, 0, capacity=3, replicas=2)
    optimizer = Optimizer(SgdSpec().build(), DECAY, exempt=(slice(5, 9),), clip=clip, late=late.build())
    config = ShardConfig(SliceUpdate(optimizer, NUMEL, torch.device("cpu")), lambda seen: LR)
    states = two_states(plan, optimizer.state_names, NUMEL)
    shard = Shard(config, own_ring(plan, NUMEL), states, journal_of(plan, 0, ring_is_read=True))
    left = read_journal(shard.journal)
    if left is None:
        shard.begin(drawn(99), optimizer.initial_state(drawn(99)))
    else:
        shard.restore(left)
    return shard


def push(number: int, worker: int) -> ReceivedPush:
    return ReceivedPush(worker, PushIdentity(0, number, number), number + 1, 4, 1, drawn(number))


def written_out(late: LateSpec, course: list[tuple[str, int]]) -> Tensor:
    """Zheng et al. 2017, algorithm 2, or Barkai et al. 2020, with weight decay in the gradient."""
    w, s, fetched, number = drawn(99), torch.zeros(NUMEL), dict[int, Tensor](), 0
    decayed = torch.full((NUMEL,), DECAY)
    decayed[5:9] = 0
    for what, worker in course:
        if what == "fetch":
            fetched[worker] = w.clone()
            continue
        g, number, moved = drawn(number), number + 1, w - fetched.get(worker, w)
        if isinstance(late, Compensation):
            s = late.decay * s + (1 - late.decay) * g**2
            rate = late.strength / (s + EPSILON).sqrt() if late.adaptive else late.strength
            g = g + rate * g * g * moved
        elif moved.any():
            g = g / (1 + moved.abs() / s.sqrt())
        step = -LR * (g + decayed * w)
        if not isinstance(late, Compensation):
            s = MEMORY * s + (1 - MEMORY) * step**2 if s.any() else step**2
        w = w + step
    return w


COURSE = [("fetch", 0), ("fetch", 1), ("push", 0), ("push", 1), ("fetch", 1), ("push", 1), ("push", 0), ("fetch", 0),
          ("push", 0), ("push", 1), ("push", 2)]  # fmt: skip
"""Staleness 0, 1, 0, 3, 0, 2; worker 2 has fetched nothing that is left."""


def follow(shard: Shard, course: list[tuple[str, int]], begin: int = 0, fused: bool = False) -> None:
    number = begin
    for what, worker in course:
        if what == "push":
            shard.push(push(number, worker))
            number += 1
        elif shard.ripe:
            shard.apply()
        if what == "fetch":
            shard.pin(worker)
        elif not fused:
            shard.apply()
    shard.apply()


@RULES
def test_each_push_is_compensated_from_what_its_worker_fetched(tmp_path: Path, late: LateSpec) -> None:
    one_by_one, fused = shard_in(tmp_path / "a", late), shard_in(tmp_path / "b", late)
    follow(one_by_one, COURSE)
    follow(fused, COURSE, fused=True)
    assert torch.allclose(one_by_one.params, written_out(late, COURSE), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(one_by_one.params, written_out(Compensation(lambda_0=0), COURSE), atol=1e-3)
    assert torch.equal(one_by_one.params, fused.params)
    assert all(torch.equal(fused.state[name], vector) for name, vector in one_by_one.state.items())


@RULES
@pytest.mark.parametrize("cut", range(2, len(COURSE)))
def test_a_shard_that_died_compensates_from_what_workers_had_fetched_before(
    tmp_path: Path, late: LateSpec, cut: int
) -> None:
    shard = shard_in(tmp_path, late)
    for worker in range(2):
        shard.join(worker)
    follow(shard, COURSE[:cut])
    again = shard_in(tmp_path, late)
    pushed = sum(what == "push" for what, _ in COURSE[:cut])
    assert again.version == pushed
    follow(again, COURSE[cut:], begin=pushed)
    undisturbed = shard_in(tmp_path / "other", late)
    follow(undisturbed, COURSE)
    assert torch.equal(again.params, undisturbed.params)
    assert all(torch.equal(again.state[name], vector) for name, vector in undisturbed.state.items())
    assert len(again.state) == late.num_states


def test_what_is_clipped_is_the_compensated_gradient(tmp_path: Path) -> None:
    clipped = shard_in(tmp_path, CONSTANT, ClipSpec(value=0.01))
    follow(clipped, COURSE[:3])
    before = clipped.params.clone()
    follow(clipped, COURSE[3:4], begin=1)
    w, g = before, drawn(1)
    late = (g + CONSTANT.strength * g * g * (w - drawn(99))).clamp(-0.01, 0.01)
    late[:5] += DECAY * w[:5]
    late[9:] += DECAY * w[9:]
    assert torch.allclose(clipped.params, w - LR * late, rtol=1e-5, atol=1e-6)


def test_parameters_that_went_on_in_one_direction_divide_by_1_and_the_staleness(tmp_path: Path) -> None:
    """Without decay in the parameters 5 to 8: three equal steps, and a fourth gradient from before them."""
    shard = shard_in(tmp_path, GapAware())
    shard.pin(1)
    for number in range(3):
        shard.pin(0)
        shard.push(ReceivedPush(0, PushIdentity(0, number, number), number + 1, 4, 1, torch.ones(NUMEL)))
        shard.apply()
    before = shard.params.clone()
    shard.push(ReceivedPush(1, PushIdentity(0, 3, 3), 1, 4, 1, torch.ones(NUMEL)))
    shard.apply()
    assert torch.allclose((before - shard.params)[5:9], torch.full((4,), LR / (1 + 3)), rtol=1e-3)
