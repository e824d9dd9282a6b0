"""Buckets of a canonical sum: the bits of the whole one on every transport, while other calls go on."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import KINDS, Groups, rendezvous_for
from trainers.collectives.beside.ordered_buckets import OrderedBuckets
from trainers.collectives.buckets import Bucket, ordered_bucket_bytes
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import depth, sum_leaves
from trainers.errors import PeerLost
from trainers.links.encoding import DTYPES
from trainers.links.handle import Handle, done
from trainers.links.names import WireName

NUMEL = 400
SPANS = (slice(0, 144), slice(144, 150), slice(150, 320), slice(320, 400))
PARAMETERS = [Bucket(span, (f"p{i}",)) for i, span in enumerate(SPANS)]


@pytest.fixture(params=KINDS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    with rendezvous_for(request.param) as rendezvous:
        yield Groups(request.param, tmp_path, rendezvous)


@pytest.fixture(autouse=True)
def each_parameter_is_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.collectives.beside.ordered_buckets.ordered_bucket_bytes", lambda size: 1)


def leaf(rank: int, step: int) -> Tensor:
    """A vector whose sums depend on the order in which they are made."""
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(10 * step + rank)) * 10.0**rank


def lay_down(reduction: Reduction, rank: int, parts: list[Tensor], step: int) -> None:
    for node, part in zip(reduction.nodes(rank), parts, strict=True):
        buffers = [torch.empty(NUMEL) for _ in range(depth(node))]
        sum_leaves(node, buffers, lambda k, into: into.copy_(leaf(k, step).to(DTYPES[reduction.wire])))
        part.copy_(buffers[0])


def summed(
    collectives: Collectives, reduction: Reduction, steps: int, during: Callable[[], Handle[int]] = lambda: done(0)
) -> Iterator[Tensor]:
    """The sum of each step, which the next one overwrites. during: What is done while buckets travel."""
    parts, total = collectives.parts(reduction), collectives.replicated("total", NUMEL)
    buckets = OrderedBuckets(collectives, reduction, parts, total, PARAMETERS)
    for step in range(steps):
        lay_down(reduction, collectives.rank, parts, step)
        for bucket in reversed(buckets.buckets):
            buckets.begin(bucket.span)
        during().wait()
        buckets.finish()
        yield total


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_they_have_the_bits_of_the_whole_sum(groups: Groups, size: int, wire: WireName) -> None:
    """Of 5 virtual workers, step after step in the same memory; of one bucket some workers have nothing to add up."""

    def body(collectives: Collectives) -> list[Tensor]:
        found = list[Tensor]()
        for total in summed(collectives, Reduction(5, size, NUMEL, wire), 3, during=collectives.barrier):
            found.append(total.clone())
            collectives.barrier().wait()  # the others may still be reading my parts
        return found

    expected = []
    for step in range(3):
        a, b, c, d, e = (leaf(rank, step).to(DTYPES[wire]).float() for rank in range(5))
        expected.append(((a + b) + (c + d)) + e)
    for found in groups.run(size, body):
        assert all(map(torch.equal, found, expected))


def test_as_many_bytes_travel_as_of_the_whole_sum(groups: Groups) -> None:
    """Of 2 workers with 2 virtual ones each: half of its part, and half of the sum."""

    def body(collectives: Collectives) -> tuple[int, int]:
        reduction = Reduction(4, 2, NUMEL)
        parts = collectives.parts(reduction)
        whole, total = [Bucket(slice(0, NUMEL), ("all",))], collectives.replicated("total", NUMEL)
        buckets = OrderedBuckets(collectives, reduction, parts, total, whole)
        collectives.meter.take()
        buckets.begin(slice(0, NUMEL))
        buckets.finish()
        counted = collectives.meter.take()
        collectives.barrier().wait()
        return counted.sent_bytes, counted.received_bytes

    (sent, received), (sent_back, received_back) = groups.run(2, body)
    assert sent + sent_back == 2 * 4 * NUMEL
    assert (received, received_back) == (sent_back, sent)


def test_who_waits_for_a_lost_worker_is_told(groups: Groups) -> None:
    def body(collectives: Collectives) -> None:
        reduction = Reduction(2, 2, NUMEL)
        parts, total = collectives.parts(reduction), collectives.replicated("total", NUMEL)
        buckets = OrderedBuckets(collectives, reduction, parts, total, PARAMETERS)
        collectives.barrier().wait()
        if collectives.rank:
            collectives.close()
            return
        buckets.begin(SPANS[-1])
        with pytest.raises(PeerLost):
            buckets.finish()

    groups.run(2, body)


@pytest.mark.parametrize(("size", "mebibytes"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 2), (9, 4), (64, 16)])
def test_buckets_grow_with_the_workers(size: int, mebibytes: int) -> None:
    assert ordered_bucket_bytes(size) == mebibytes * 2**20
