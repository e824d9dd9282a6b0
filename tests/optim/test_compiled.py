"""Rules in one pass: with the bits of torch's operations, and where the compiled code cannot be kept."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optim.one_pass import NUMBERS, RULES, leave_to_operations, updated
from trainers.algorithms.admm.step import Agent, Penalised, _follow, _weigh
from trainers.collectives.reduction_tree import TreeSum
from trainers.optim import compiled, update
from trainers.optim.buffers import Buffers
from trainers.optim.clip import ClipSpec
from trainers.optim.ema import EmaSpec
from trainers.optim.gradient import Gradient, TensorGradient
from trainers.optim.optimizer import Group, Optimizer
from trainers.optim.optimizers.adam import kernel
from trainers.optim.rule import initial_state
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import AdamSpec, AdamWSpec, AnyOptimizer, MomentumSpec, SgdSpec

CPU = torch.device("cpu")


@settings(deadline=None)  # the first of each rule may compile it
@given(
    spec=st.sampled_from(RULES), numel=st.integers(0, 300), seed=st.integers(0, 99), in_place=st.booleans(),
    divisors=st.lists(st.sampled_from([0.0, 1.0, 1.5, 3.0, 7.0, 64.0, 2.0**-3]), min_size=1, max_size=3),
    scale=st.sampled_from([1.0, 0.37]), decay=st.sampled_from([0.0, 1e-4, 0.3]), edges=st.sets(st.integers(0, 18)),
)  # fmt: skip
def test_one_pass_has_the_bits_of_the_operations(
    spec: AnyOptimizer, numel: int, seed: int, in_place: bool, divisors: list[float], scale: float, decay: float,
    edges: set[int],
) -> None:  # fmt: skip
    places = [min(16 * edge, numel) for edge in sorted(edges)]
    exempt = tuple(slice(a, b) for a, b in zip(places[::2], places[1::2], strict=False) if a < b)
    fields = {"numel": numel, "in_place": in_place, "divisors": divisors, "scale": scale, "decay": decay, "seed": seed}
    both = (updated(spec, CPU, passes=passes, exempt=exempt, **fields) for passes in (True, False))
    found = [[vector.numpy().view(np.int32) for vector in vectors] for vectors in both]
    for mine, theirs in zip(*found, strict=True):
        assert np.array_equal(mine, theirs)


@settings(deadline=None)
@given(
    spec=st.sampled_from([*RULES, AdamSpec()]), leaves=st.integers(1, 4), seed=st.integers(0, 99),
    wire=st.sampled_from([torch.float32, torch.bfloat16]), chunk=st.sampled_from([16, 48, 300]),
    count=st.integers(1, 2), averages=st.booleans(),
)  # fmt: skip
def test_gradients_that_are_added_in_the_pass_have_the_bits_of_their_sum(
    spec: AnyOptimizer, leaves: int, seed: int, wire: torch.dtype, chunk: int, count: int, averages: bool
) -> None:  # fmt: skip
    """With groups that begin anywhere, too, whose neighbours must stay as they are."""
    rule, numel = spec.build(), 203
    groups = (Group(rule, 0.2, 0.5, (slice(70, 150),)),)
    ema = EmaSpec(decay=0.9) if averages else None
    optimizer = Optimizer(rule, 0.1, (slice(16, 48),), groups=groups, ema=ema)
    with mock.patch.object(update, "CHUNK", chunk):
        mine, theirs = (SliceUpdate(optimizer, numel, CPU) for _ in range(2))
    leave_to_operations(theirs)
    vectors = torch.randn(2 + count * leaves, numel, generator=torch.Generator().manual_seed(seed))
    vectors[:, :7] = torch.tensor(NUMBERS)
    sums: list[Gradient] = [
        TreeSum(leaves, {(k, k + 1): vectors[2 + i * leaves + k].to(wire) for k in range(leaves)}) for i in range(count)
    ]
    found = []
    for one in (mine, theirs):
        now, then = (
            Buffers(vectors[i].clone(), {name: vectors[1 - i].abs() for name in optimizer.state_names}) for i in (0, 1)
        )
        one.apply([Contribution(gradient, 3.0, 0.1, decays=2, seen=i) for i, gradient in enumerate(sums)], now, then)
        found.append([vector.numpy().view(np.int32) for vector in then.vectors])
    for left, right in zip(*found, strict=True):
        assert np.array_equal(left, right)


def test_what_one_pass_does_not_do_is_left_to_the_operations() -> None:
    assert SliceUpdate(Optimizer(SgdSpec().build()), 64, CPU).in_one_pass
    assert not SliceUpdate(Optimizer(SgdSpec().build(), clip=ClipSpec(value=0.1)), 64, CPU).in_one_pass


def test_it_is_compiled_anew_where_no_folder_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def jit(*signature: object, cache: bool = False) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return at_once(*signature)

    at_once = compiled.jit
    monkeypatch.setattr(compiled, "jit", jit)
    again = compiled.kept(kernel.SIGNATURE)(kernel.adam.py_func)
    numbers = np.random.default_rng(0).random((9, 70), np.float32)
    factors = np.array([0.9, 0.1, 0.99, 0.01, 0.05, 0.2, 1e-8, 1], np.float32)
    found = []
    for adam in (kernel.adam, again):
        vectors = numbers.copy()
        adam(*vectors, np.array([0, 3, 9, 70]), *factors, False)
        found.append(vectors)
    assert np.array_equal(*found)
    assert not np.array_equal(found[0], numbers)


@given(numel=st.integers(0, 300), seed=st.integers(0, 99), rho=st.floats(0, 10))
@settings(deadline=None)
def test_admm_has_the_bits_of_the_operations(numel: int, seed: int, rho: float) -> None:
    g, x, z, u, into = torch.randn(5, numel, generator=torch.Generator().manual_seed(seed))
    agent, wanted = Agent(x, u, {}, examples=7), torch.sub(x, z).add_(u)
    assert torch.equal(Penalised(g, agent, z, rho).piece(0, numel), torch.mul(wanted, rho).add_(g))
    _weigh(agent, into)
    assert torch.equal(into, torch.add(x, u).mul_(7))
    wanted = u + (x - z)
    _follow(agent, z)
    assert torch.equal(u, wanted)


@given(spec=st.sampled_from(RULES), numel=st.integers(0, 300), seed=st.integers(0, 99), decay=st.booleans())
@settings(deadline=None)
def test_the_pull_of_admm_is_made_in_the_pass(spec: AnyOptimizer, numel: int, seed: int, decay: bool) -> None:
    rule = spec.build()
    g, z, u, *first = torch.randn(5, numel, generator=torch.Generator().manual_seed(seed))
    found = []
    for passes in (True, False):
        x, state = first[0].clone(), {name: first[1].clone() for name in rule.state_names}
        one = SliceUpdate(Optimizer(rule, 0.1 * decay, (slice(16, 48),)), numel, CPU)
        if not passes:
            leave_to_operations(one)
        version = Buffers(x, state)
        one.apply([Contribution(Penalised(g, Agent(x, u, state, 1), z, 0.3), 1, 0.1)], version, version)
        found.append(version.vectors)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


@pytest.mark.parametrize("spec", [*RULES, AdamSpec(), AdamWSpec()], ids=lambda spec: spec.name)
def test_the_same_bits_in_place(spec: AnyOptimizer) -> None:
    rule, numel = spec.build(), 64 * 5 + 3
    found = []
    for is_in_place in (True, False):
        generator = torch.Generator().manual_seed(3)
        w, g, after = torch.randn(3, numel, generator=generator)
        now = Buffers(w, initial_state(rule, w))
        then = now if is_in_place else Buffers(after, initial_state(rule, after))
        update = SliceUpdate(Optimizer(rule, 0.1, (slice(16, 48),)), numel, CPU)
        for _ in range(2):
            update.apply([Contribution(TensorGradient(g), 7, 0.1)], now, then)
            now, then = then, now
        found.append(now.vectors)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(*found, strict=True))


def test_a_state_that_lies_elsewhere_is_written_there_though_the_parameters_are_the_same() -> None:
    w, u, after, g = torch.randn(4, 64, generator=torch.Generator().manual_seed(4))
    then, wanted = Buffers(w, {"momentum": after}), torch.mul(u, 0.9).add_(g)
    update = SliceUpdate(Optimizer(MomentumSpec(momentum=0.9).build()), 64, CPU)
    update.apply([Contribution(TensorGradient(g), 1, 0.1)], Buffers(w, {"momentum": u}), then)
    assert torch.equal(then.state["momentum"], wanted)
