"""Canonical sums beside the caller where nodes have several workers: bits, bytes, and who is lost."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.collectives.test_hierarchical import LAYOUTS, run
from tests.contracts.test_ordered_buckets import NUMEL, PARAMETERS, leaf, summed
from trainers.collectives.beside.ordered_buckets import OrderedBuckets
from trainers.collectives.buckets import Bucket
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import TreeSum
from trainers.errors import PeerLost
from trainers.links.encoding import DTYPES
from trainers.links.names import WireName
from trainers.metrics import StepCounters


@pytest.fixture(autouse=True)
def each_parameter_is_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.collectives.beside.ordered_buckets.ordered_bucket_bytes", lambda size: 1)


@pytest.mark.parametrize("nodes", LAYOUTS)
@pytest.mark.parametrize("num_virtual", [5, 8])
@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_they_have_the_bits_of_the_whole_sum(
    tmp_path: Path, nodes: tuple[int, ...], num_virtual: int, wire: WireName
) -> None:
    """Step after step in the same memory, which the workers of a node see together; nobody waits for the others between
    two steps but those of a node, as an algorithm does that writes the next version of the parameters."""

    def body(collectives: Collectives) -> list[Tensor]:
        found = list[Tensor]()
        for total in summed(collectives, Reduction(num_virtual, len(nodes), NUMEL, wire), 4):
            found.append(total.clone())
            collectives.complete().wait()
        return found

    every = [{(k, k + 1): leaf(k, step).to(DTYPES[wire]).float() for k in range(num_virtual)} for step in range(4)]
    expected = [TreeSum(num_virtual, leaves).piece(0, NUMEL) for leaves in every]
    for found in run("hierarchical", nodes, tmp_path, body):
        assert all(map(torch.equal, found, expected))


def counted(sums: Callable[[Collectives, Reduction, list[Tensor], Tensor], None], num_virtual: int) -> object:
    """What is counted of one sum."""

    def body(collectives: Collectives) -> StepCounters:
        reduction = Reduction(num_virtual, collectives.size, NUMEL)
        parts, total = collectives.parts(reduction), collectives.replicated("total", NUMEL)
        collectives.barrier().wait()
        collectives.meter.take()
        sums(collectives, reduction, parts, total)
        return collectives.meter.take()

    return body


def beside(collectives: Collectives, reduction: Reduction, parts: list[Tensor], total: Tensor) -> None:
    buckets = OrderedBuckets(collectives, reduction, parts, total, [Bucket(slice(0, NUMEL), ("all",))])
    buckets.begin(slice(0, NUMEL))
    buckets.finish()
    collectives.barrier().wait()


def in_the_call(collectives: Collectives, reduction: Reduction, parts: list[Tensor], total: Tensor) -> None:
    collectives.reduce_canonical(reduction, parts).wait()
    collectives.all_gather(total).wait()
    collectives.barrier().wait()


@pytest.mark.parametrize("nodes", LAYOUTS)
@pytest.mark.parametrize("num_virtual", [5, 8])
def test_as_many_bytes_travel_as_of_the_whole_sum(tmp_path: Path, nodes: tuple[int, ...], num_virtual: int) -> None:
    """Within each node, and between them."""
    one = run("hierarchical", nodes, tmp_path / "one", counted(beside, num_virtual))
    other = run("hierarchical", nodes, tmp_path / "other", counted(in_the_call, num_virtual))
    assert one == other
    assert sum(each.crossed_bytes for each in one) > 0


@pytest.mark.parametrize("lost", [1, 2])
def test_who_waits_for_a_lost_worker_is_told(tmp_path: Path, lost: int) -> None:
    """Of the same node or of another, on whom all wait directly or not."""

    def body(collectives: Collectives) -> None:
        reduction = Reduction(4, 4, NUMEL)
        parts, total = collectives.parts(reduction), collectives.replicated("total", NUMEL)
        buckets = OrderedBuckets(collectives, reduction, parts, total, PARAMETERS)
        collectives.barrier().wait()
        if collectives.rank == lost:
            collectives.close()
            return
        for bucket in reversed(buckets.buckets):
            buckets.begin(bucket.span)
        with pytest.raises(PeerLost):
            buckets.finish()

    run("hierarchical", (0, 0, 1, 1), tmp_path, body)
