"""A group of `mixed` with `apart_s` that is cut off from the shards goes on by itself, and is taken back in."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from tests.equivalence import harness
from tests.equivalence.harness import Outcome, Run, digits_spec, run_through_shards, step_batches
from tests.equivalence.local.test_delta import ADAMW, NEAR, PLAIN, SGD
from trainers.elastic.lease_table import Audit
from trainers.links.handle import Handle
from trainers.parameter_server.local import LocalServer, LocalStore
from trainers.parameter_server.protocol import Fetched, Push
from trainers.spec import TrainSpec, field_errors

EVEN: dict[str, Any] = {"batch": 8, "data": {"name": "digits", "limit": 192, "random_crop": 1}}
"""24 minibatches an epoch, which are 12 steps of a group of two."""


class CutOffStore(LocalStore):
    """The way of one worker, which is cut off when it fetches for a certain time, until it has looked so many times in
    vain; or until it waits, since nobody waits for ever. What it pushes meanwhile arrives then."""

    def __init__(self, server: LocalServer, worker: int, whom: int, at_fetch: int, looks: int) -> None:
        super().__init__(server, worker)
        self.at_fetch, self.looks = (at_fetch if worker == whom else 0), looks
        self.fetches, self.kept = 0, list[tuple[Push, Tensor]]()

    @property
    def is_cut_off(self) -> bool:
        return 0 < self.at_fetch <= self.fetches and self.looks > 0

    def answers(self, within_s: float) -> bool:
        if self.is_cut_off:
            self.looks -= 1
            return False
        self.come_back()
        return True

    def fetch(self, min_clock: int, group: int = 0) -> Handle[Fetched]:
        self.fetches += 1
        asked = super().fetch(min_clock, group)
        return Handle(lambda: (self.come_back(), asked.wait())[1])

    def push(self, push: Push) -> Handle[None]:
        if not self.is_cut_off:
            return super().push(push)
        self.kept.append((push, self.slot.clone()))
        return Handle(lambda: None)

    def settle(self) -> None:
        self.come_back()
        super().settle()

    def come_back(self) -> None:
        self.looks = 0 if self.is_cut_off else self.looks
        kept, self.kept = self.kept, []
        for push, change in kept:
            self.slot.copy_(change)
            super().push(push)


def spec(workers: int, outer: object, steps: int, optimizer: object = SGD, apart_s: float = 600, **more: Any) -> Run:
    algorithm = {"name": "mixed", "group": 2, "push": "delta", "steps": steps, "outer": outer, "apart_s": apart_s}
    return Run(digits_spec({"algorithm": algorithm, "workers": workers, "ps": 2, "optimizer": optimizer} | more))


def cut_off(
    run: Run, monkeypatch: pytest.MonkeyPatch, at_fetch: int, looks: int, seed: int = 0, lease_size: int = 24
) -> Outcome:
    with monkeypatch.context() as patched:
        patched.setattr(harness, "LocalStore", partial(CutOffStore, whom=0, at_fetch=at_fetch, looks=looks))
        return run_through_shards(run, seed=seed, lease_size=lease_size)


def apart(outcome: Outcome) -> int:
    """Steps of all workers of a group."""
    return sum(report.is_apart for report in outcome.reports)


def written_out(run: Run, pushes: set[int], fetches: set[int]) -> Tensor:
    """One group of two, which pushes and fetches after the steps with these numbers: plain SGD on the mean of both
    minibatches, and Nesterov's momentum at the shards."""
    replica, w = run.replica(), run.start().buffers.params
    v, x, theta = torch.zeros_like(w), w, w
    for number, minibatches in enumerate(step_batches(run), start=1):
        gradients = [torch.zeros_like(w) for _ in minibatches]
        for rank, batch in enumerate(minibatches):
            replica.gradient(x, batch, gradients[rank], virtual_rank=rank)
        x = x - 0.05 * sum(gradients, torch.zeros_like(w)) / sum(map(len, minibatches))
        if number in pushes:
            d = theta - x
            v = 0.9 * v + d
            w, theta = w - 0.7 * (d + 0.9 * v), x
        if number in fetches:
            x = theta = w
    return w


def test_what_a_group_changes_apart_is_pushed_as_one_once_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of two steps, leases of twelve, so that an epoch is one. The second fetch is not answered; after rounds 2
    and 3 the group looks again, and is back after the fourth: rounds 2 to 4 are one push."""
    run = spec(2, "nesterov", 2, **EVEN)
    found = cut_off(run, monkeypatch, at_fetch=2, looks=3)
    pushes = {2, 8, 10, 12, *range(14, 25, 2)}
    torch.testing.assert_close(found.params, written_out(run, pushes, pushes - {2}), **NEAR)
    assert apart(found) == 2 * 6
    assert sum(found.staleness.values()) == len(pushes)
    undisturbed = run_through_shards(run, lease_size=24)
    torch.testing.assert_close(undisturbed.params, written_out(run, {*range(2, 25, 2)}, {*range(2, 25, 2)}), **NEAR)
    assert not torch.allclose(undisturbed.params, found.params, **NEAR)


def test_the_end_of_a_lease_is_pushed_also_while_the_group_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of six steps: the push of rounds 2 and 3 waits when that of rounds 4 and 5 is made."""
    run = spec(2, "nesterov", 2, **EVEN)
    found = cut_off(run, monkeypatch, at_fetch=2, looks=4, lease_size=12)
    pushes = {2, 6, 10, 12, *range(14, 25, 2)}
    torch.testing.assert_close(found.params, written_out(run, pushes, pushes - {2, 6}), **NEAR)
    assert apart(found) == 2 * 8


@pytest.mark.parametrize("looks", [1, 4, 1000])
def test_a_plain_average_does_not_see_that_the_group_was_apart(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one group the changes add up to the same, and the optimizer's state stays with it."""
    run = spec(2, PLAIN, 2, ADAMW, schedule="cosine")
    found = cut_off(run, monkeypatch, at_fetch=3, looks=looks)
    assert apart(found) > 0
    torch.testing.assert_close(found.params, run_through_shards(run, lease_size=24).params, **NEAR)


def test_after_its_time_a_group_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes the round that it begins when it finds out, and waits at its end."""
    run = spec(2, PLAIN, 2, apart_s=1e-9, **EVEN)
    assert apart(cut_off(run, monkeypatch, at_fetch=2, looks=10**9)) == 2 * 2
    assert apart(cut_off(spec(2, PLAIN, 2, apart_s=0, **EVEN), monkeypatch, at_fetch=2, looks=10**9)) == 0


def test_no_group_begins_without_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    run = spec(2, PLAIN, 2, **EVEN)
    found = cut_off(run, monkeypatch, at_fetch=1, looks=10**9)
    assert apart(found) == 0
    assert torch.equal(found.params, run_through_shards(run, lease_size=24).params)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("looks", [2, 7, 10**9])
def test_the_others_train_on_and_every_example_once(looks: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three groups is cut off for some rounds, or until it has nothing left to train."""
    run = spec(6, "nesterov", 2, ADAMW, epochs=3)
    outcome = cut_off(run, monkeypatch, at_fetch=2, looks=looks, seed=seed, lease_size=8)
    assert apart(outcome) > 0
    assert sum(report.examples for report in outcome.reports) == 3 * 203
    assert outcome.leases is not None
    audits = Counter(outcome.leases.audit(epoch) == Audit(epoch, 203, 0, 0) for epoch in range(3))
    assert audits == {True: 3}


@pytest.mark.parametrize(
    ("algorithm", "more", "pointer", "message"),
    [
        ({"push": "whole"}, {}, "/algorithm/apart_s", "set push: delta"),
        ({"max_staleness": 2}, {}, "/algorithm/apart_s", "leave max_staleness out"),
        ({"apart_s": -1}, {}, "/algorithm/apart_s", "0"),
        ({}, {"transport": "object_store"}, "/transport", "use auto"),
    ],
    ids=["gradients", "staleness", "negative", "transport"],
)
def test_what_cannot_be_is_refused(algorithm: dict[str, Any], more: dict[str, Any], pointer: str, message: str) -> None:
    fields = {"name": "mixed", "group": 2, "push": "delta", "apart_s": 300} | algorithm
    with pytest.raises(ValidationError) as error:
        TrainSpec.model_validate({"algorithm": fields, "workers": 4} | more)
    found = [(found.pointer, found.message) for found in field_errors(error.value, TrainSpec)]
    assert len(found) == 1
    assert found[0][0] == pointer
    assert message in found[0][1]
