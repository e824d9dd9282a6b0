"""Buckets leave in one order, at most c are under way, and everyone gets the same parameters."""

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainers.collectives.bucketed import BucketScheduler, MessageBucketReducer, build_bucket_reducer, gathered
from trainers.collectives.buckets import Bucket
from trainers.collectives.local import local_collectives
from trainers.collectives.messages import Messages
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import ReducedSpan
from trainers.links.handle import Handle
from trainers.links.local import LocalWorld

BUCKETS = [slice(0, 64), slice(64, 128 + 16), slice(128 + 16, 320), slice(320, 330), slice(330, 400)]
NUMEL = 400


def names(index: int) -> tuple[str, ...]:
    return tuple(f"{index}-{i}" for i in range(3))


@pytest.mark.parametrize("seed", range(10))
def test_buckets_leave_from_the_back_whatever_the_order_of_the_hooks(seed: int) -> None:
    """And each as soon as it and all behind it are complete."""
    left: list[slice] = []
    departures = BucketScheduler([Bucket(span, names(i)) for i, span in enumerate(BUCKETS)], left.append)
    told: set[str] = set()
    order = [name for i in range(len(BUCKETS)) for name in names(i)]
    random.Random(seed).shuffle(order)
    for name in order:
        departures.ready(name)
        told.add(name)
        complete = [set(names(i)) <= told for i in reversed(range(len(BUCKETS)))]
        count = complete.index(False) if False in complete else len(BUCKETS)
        assert left == BUCKETS[::-1][:count]


def test_without_a_backward_pass_all_leave_at_once_in_the_same_order() -> None:
    left: list[slice] = []
    BucketScheduler([Bucket(span, names(i)) for i, span in enumerate(BUCKETS)], left.append).rest()
    assert left == BUCKETS[::-1]


def test_parameters_gather_from_the_back_and_what_is_complete_waits_for_nothing_small_in_front() -> None:
    """A convolution before a large layer is a bucket of its own, however small."""
    sizes = [16, 32, 4000, 16, 100, 48]
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    spans = [slice(a, b) for a, b in itertools.pairwise(edges)]
    parameters = [Bucket(span, (f"p{i}",)) for i, span in enumerate(spans)]
    found = gathered(parameters, least_bytes=4 * 130)
    assert [bucket.names for bucket in found] == [("p0", "p1"), ("p2", "p3"), ("p4", "p5")]
    assert [bucket.span for bucket in found] == [slice(0, 48), slice(48, 4064), slice(4064, 4212)]
    assert gathered(parameters, least_bytes=1) == parameters
    assert [bucket.span for bucket in gathered(parameters, 10**9)] == [slice(0, 4212)]


class CountingLane:
    """A lane that counts how many exchanges of all lanes are under way."""

    def __init__(self, lane: object, under_way: list[str], most: list[int]) -> None:
        self.lane, self.under_way, self.most = lane, under_way, most

    def begin(self, exchange: Callable[[Messages], None]) -> Handle[None]:
        def counted(messages: Messages) -> None:
            self.under_way.append("begun")
            self.most.append(len(self.under_way))
            exchange(messages)
            self.under_way.pop()

        return self.lane.begin(counted)  # type: ignore[attr-defined,no-any-return]


def trained(c: Collectives, algorithm: str, in_flight: int, most: list[int] | None = None) -> Tensor:
    """Three steps of w <- w - sum over the workers of (rank + 1) (step + 1) / 10, from 1."""
    summation = build_bucket_reducer(c, torch.zeros(NUMEL), algorithm, in_flight)
    if most is not None:
        assert isinstance(summation, MessageBucketReducer)
        under_way: list[str] = []
        summation.lanes = [CountingLane(lane, under_way, most) for lane in summation.lanes]  # type: ignore[misc]
    versions = [summation.replicated(f"params-{i}", torch.ones(NUMEL)) for i in (0, 1)]
    for step in range(3):
        current, following = versions[step % 2], versions[(step + 1) % 2]

        def update(bucket: slice, share: ReducedSpan, old: Tensor = current, new: Tensor = following) -> None:
            n = share.span.stop - share.span.start
            new[bucket][share.span] = old[bucket][share.span] - share.gradient.piece(0, n)

        summation.part.fill_((c.rank + 1) * (step + 1) / 10)
        for bucket in reversed(BUCKETS):
            summation.begin(bucket, update, following)
        summation.finish(following)
    return versions[3 % 2].clone()


@pytest.mark.parametrize("algorithm", ["ring", "binary_blocks", "three_phase", "auto", "library"])
@pytest.mark.parametrize("in_flight", [1, 2, 7])
def test_every_worker_has_the_same_parameters(algorithm: str, in_flight: int) -> None:
    for size in (1, 2, 3):
        world = LocalWorld(in_flight)
        members = local_collectives(world, size)
        found = world.run([lambda c=c: trained(c, algorithm, in_flight) for c in members])
        expected = 1 - size * (size + 1) / 2 * 6 / 10
        for params in found:
            torch.testing.assert_close(params, torch.full((NUMEL,), expected))
            assert torch.equal(params, found[0])


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_at_most_c_exchanges_are_under_way(in_flight: int) -> None:
    """As many as c, in some interleaving, and never more."""
    most: list[int] = []
    for seed in range(4):
        members = local_collectives(LocalWorld(seed), 2)
        members[0].group.world.run([lambda c=c: trained(c, "ring", in_flight, most) for c in members])
    assert len(most) == 4 * 2 * 3 * len(BUCKETS)
    assert max(most) == in_flight
