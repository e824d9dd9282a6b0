"""What every implementation of `Collectives` must do."""

import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import KINDS, Groups, Latecomer, join, rendezvous_for
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import depth, sum_leaves
from trainers.errors import PeerLost
from trainers.links.encoding import DTYPES
from trainers.links.names import WireName
from trainers.optim.slices import spans

NUMEL = 64 * 7 + 5  # not a multiple of anything


@pytest.fixture(params=KINDS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    with rendezvous_for(request.param) as rendezvous:
        yield Groups(request.param, tmp_path, rendezvous)


def leaf(virtual_rank: int, numel: int = NUMEL) -> Tensor:
    """A vector whose sums depend on the order in which they are made."""
    return torch.randn(numel, generator=torch.Generator().manual_seed(virtual_rank)) * 10.0**virtual_rank


def reduced(
    collectives: Collectives, num_virtual: int, numel: int = NUMEL, rounds: int = 1, wire: WireName = "float32"
) -> Tensor:
    """This worker's span of the canonical sum over the leaves of all virtual ranks."""
    reduction = Reduction(num_virtual, collectives.size, numel, wire)
    parts = collectives.parts(reduction)
    span = collectives.span(numel)
    found = torch.empty(0)
    for _ in range(rounds):
        for node, part in zip(reduction.nodes(collectives.rank), parts, strict=True):
            scratch = [torch.empty(numel) for _ in range(depth(node))]
            sum_leaves(node, scratch, lambda rank, into: into.copy_(leaf(rank, numel).to(DTYPES[wire])))
            part.copy_(scratch[0])
        total = collectives.reduce_canonical(reduction, parts).wait()
        found = total.piece(0, span.stop - span.start).clone()
        collectives.barrier().wait()  # the others may still be reading my parts
    return found


def by_hand(num_virtual: int, wire: WireName = "float32") -> Tensor:
    """The trees over 3 and 5 virtual ranks, written out."""
    a, b, c, d, e = (leaf(rank).to(DTYPES[wire]).float() for rank in range(5))
    return (a + b) + c if num_virtual == 3 else ((a + b) + (c + d)) + e


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_virtual", [3, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_reduce_canonical_is_the_tree_written_out(groups: Groups, size: int, num_virtual: int, wire: WireName) -> None:
    found = groups.run(size, lambda c: reduced(c, num_virtual, wire=wire))
    assert torch.equal(torch.cat(found), by_hand(num_virtual, wire))
    assert not torch.equal(by_hand(num_virtual), by_hand(num_virtual, "bfloat16"))


def test_the_test_above_can_fail() -> None:
    """A sum from left to right has other bits."""
    assert not torch.equal(sum((leaf(rank) for rank in range(1, 5)), leaf(0)), by_hand(5))


def test_reduce_canonical_again_and_again_and_on_a_vector_too_small_to_share(groups: Groups) -> None:
    again = groups.run(2, lambda c: reduced(c, 5, rounds=3))
    assert torch.equal(torch.cat(again), by_hand(5))
    both = groups.run(3, lambda c: (reduced(c, 3, numel=10), reduced(c, 3)))  # two of the spans of 10 are empty
    small, beside = zip(*both, strict=True)
    a, b, c = (leaf(rank, 10) for rank in range(3))
    assert torch.equal(torch.cat(small), (a + b) + c)
    assert torch.equal(torch.cat(beside), by_hand(3)), "sums of several lengths lie beside each other"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_gather_completes_a_replicated_vector_and_agrees_on_the_largest_signal(groups: Groups, size: int) -> None:
    def body(c: Collectives) -> tuple[Tensor, int]:
        vector, state = c.replicated("vector", NUMEL), c.replicated("state", 64)
        for _ in range(2):
            vector[c.span(NUMEL)] = c.rank + 1.0
            state[c.span(64)] = -1.0
            agreed = c.all_gather(vector, signal=10 + c.rank).wait()
            c.all_gather(state).wait()
        assert bool((state == -1).all())
        return vector.clone(), agreed

    expected = torch.cat([torch.full((s.stop - s.start,), k + 1.0) for k, s in enumerate(spans(NUMEL, size))])
    for vector, agreed in groups.run(size, body):
        assert torch.equal(vector, expected)
        assert agreed == 10 + size - 1


def test_a_vector_is_divided_at_the_places_given(groups: Groups) -> None:
    """Vectors of other lengths are not."""
    places = [0, 16, 48, 400, NUMEL]

    def body(c: Collectives) -> tuple[slice, slice, Tensor]:
        c.cut_at(places)
        vector = c.replicated("divided", NUMEL)
        vector[c.span(NUMEL)] = reduced(c, 5)
        c.all_gather(vector).wait()
        return c.span(NUMEL), c.span(64 * 9), vector.clone()

    results = groups.run(3, body)
    assert [span for span, _, _ in results] == [slice(0, 48), slice(48, 400), slice(400, NUMEL)]
    assert [span for _, span, _ in results] == spans(64 * 9, 3)
    assert all(torch.equal(vector, by_hand(5)) for _, _, vector in results)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reduce_scatter_and_all_reduce_sum_add_in_the_order_of_ranks(groups: Groups, size: int) -> None:
    def body(c: Collectives) -> tuple[Tensor, Tensor]:
        scattered = c.reduce_scatter(leaf(c.rank)).wait()
        vector = leaf(c.rank)  # private memory
        c.all_reduce_sum(vector).wait()
        return scattered, vector

    expected = sum((leaf(k) for k in range(1, size)), leaf(0))
    results = groups.run(size, body)
    assert torch.equal(torch.cat([scattered for scattered, _ in results]), expected)
    for _, vector in results:
        assert torch.equal(vector, expected)


@pytest.mark.parametrize("sizes", [[[2, 3], [1, 4]], [[0, 1, 2], [5, 0, 0], [0, 7, 3]], [[0, 0], [0, 0]], [[3]]])
def test_all_to_all_of_uneven_and_empty_vectors(groups: Groups, sizes: list[list[int]]) -> None:
    """`sizes[i][k]`: what i sends to k."""

    def sent(i: int, k: int) -> Tensor:
        return torch.arange(sizes[i][k]) + 100.0 * i + 10.0 * k

    def body(c: Collectives) -> list[Tensor]:
        receive = [torch.full((sizes[i][c.rank],), -1.0) for i in range(c.size)]
        c.all_to_all([sent(c.rank, k) for k in range(c.size)], receive).wait()
        return receive

    for rank, received in enumerate(groups.run(len(sizes), body)):
        for i, vector in enumerate(received):
            assert torch.equal(vector, sent(i, rank))


@pytest.mark.parametrize("root", [0, 2])
def test_broadcast_replaces_everyones_vector_by_the_roots(groups: Groups, root: int) -> None:
    def body(c: Collectives) -> list[Tensor]:
        vectors = [leaf(c.rank) + again for again in range(3)]
        for vector in vectors:
            c.broadcast(vector, root).wait()
        return vectors

    for vectors in groups.run(3, body):
        for again, vector in enumerate(vectors):
            assert torch.equal(vector, leaf(root) + again)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_barrier_agrees_on_the_largest_signal(groups: Groups, size: int) -> None:
    def body(c: Collectives) -> list[int]:
        first = c.barrier(signal=7 if c.rank == size - 1 else 0)
        return [first.wait(), first.wait(), c.barrier().wait(), c.barrier(signal=c.rank).wait()]

    assert groups.run(size, body) == [[7, 7, 0, size - 1]] * size


def test_a_barrier_lets_nobody_through_before_all_have_come(groups: Groups) -> None:
    came: list[int] = []

    def body(c: Collectives) -> int:
        came.append(c.rank)
        c.barrier().wait()
        return len(set(came))

    assert groups.run(3, body) == [3, 3, 3]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_bytes_that_leave_and_arrive_are_counted(groups: Groups, size: int) -> None:
    """2 (p - 1)/p b bytes for a reduction and a gathering of b bytes (paper 4, section 4.1), and so on for the rest."""
    numel = 64 * 6  # which 2 and 3 workers share evenly
    share = numel // size
    plain, rounded = Reduction(size, size, numel), Reduction(size, size, numel, "bfloat16")

    def body(c: Collectives) -> list[tuple[int, int]]:
        counts, before = [], (0, 0)
        calls = [
            *(lambda r=r: c.reduce_canonical(r, c.parts(r)) for r in (plain, rounded)),
            lambda: c.all_gather(c.replicated("vector", numel)),
            lambda: c.all_reduce_sum(torch.ones(numel)),
            lambda: c.broadcast(torch.ones(numel), root=0),
            lambda: c.all_to_all([torch.ones(k + 1) for k in range(size)], [torch.ones(c.rank + 1)] * size),
            c.barrier,
        ]
        for call in calls:
            call().wait()
            c.barrier().wait()
            now = c.meter.counted.sent_bytes, c.meter.counted.received_bytes
            counts.append((now[0] - before[0], now[1] - before[1]))
            before = now
        return counts

    if groups.kind == "hierarchical" and size == 3:
        pytest.skip("who shares a node moves less: tests/transport/test_composed.py")
    for rank, (reduced_, halved, gathered, both, broadcast, exchanged, met) in enumerate(groups.run(size, body)):
        others = size - 1
        assert halved == (2 * others * share, 2 * others * share)
        assert reduced_ == gathered == (4 * others * share, 4 * others * share)
        assert both == (8 * others * share, 8 * others * share)
        assert broadcast == ((4 * others * numel, 0) if rank == 0 else (0, 4 * numel))
        assert exchanged == (4 * (sum(range(1, size + 1)) - rank - 1), 4 * others * (rank + 1))
        assert met == (0, 0)


def test_work_may_be_done_between_a_call_and_its_wait(groups: Groups) -> None:
    def body(c: Collectives) -> tuple[Tensor, int]:
        vector = c.replicated("vector", NUMEL)
        vector[c.span(NUMEL)] = float(c.rank)
        handle = c.all_gather(vector, signal=1)
        product = torch.randn(50, 50) @ torch.randn(50, 50)
        assert product.shape == (50, 50)
        return vector, handle.wait()

    for vector, agreed in groups.run(2, body):
        assert sorted(set(vector.tolist())) == [0.0, 1.0]
        assert agreed == 1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_exchanges_under_way_together_may_be_waited_for_in_any_order(groups: Groups, size: int) -> None:
    """Of several sizes, more than a transport may keep under way, with a barrier among them; the senders' vectors are
    free once an exchange is begun."""

    def body(c: Collectives) -> list[list[Tensor]]:
        handles, received = [], []
        for number in range(7):
            send = [torch.full((number + 1,), 100.0 * c.rank + 10 * number + k) for k in range(c.size)]
            received.append([torch.empty(number + 1) for _ in range(c.size)])
            handles.append(c.all_to_all(send, received[-1]))
            for vector in send:
                vector.zero_()
        meeting = c.barrier(signal=c.rank)
        for handle in [*handles[1:], handles[0]][::-1]:
            handle.wait()
        assert meeting.wait() == c.size - 1
        return received

    for rank, received in enumerate(groups.run(size, body)):
        for number, vectors in enumerate(received):
            for k, vector in enumerate(vectors):
                assert torch.equal(vector, torch.full((number + 1,), 100.0 * k + 10 * number + rank))


def test_shared_memory_makes_no_file_once_its_boxes_are_large_enough(groups: Groups) -> None:
    if groups.kind != "shared_memory":
        pytest.skip("only shared memory has boxes")

    def body(c: Collectives) -> tuple[list[Path], list[Path]]:
        def exchange(numel: int) -> None:
            received = [torch.empty(numel) for _ in range(c.size)]
            c.all_to_all([torch.full((numel,), float(c.rank))] * c.size, received).wait()
            assert [float(vector.mean()) for vector in received] == [0.0, 1.0]

        found = []
        for numel in (40_000, 100_000, 90_000):  # the second outgrows the boxes of the first
            for _ in range(9):
                exchange(numel)
            c.barrier().wait()
            found.append(sorted(c.folder.glob("box-*")))  # type: ignore[attr-defined]
            c.barrier().wait()
        assert not set(found[0]) & set(found[1])
        return found[1], found[2]

    for grown, after in groups.run(2, body):
        assert grown == after
        assert len(grown) == 2 * 4


def test_a_subgroup_works_among_its_own_beside_the_whole(groups: Groups) -> None:
    def body(c: Collectives) -> tuple[int, int, float] | None:
        members = c.subgroup([2, 0])
        assert (members is None) == (c.rank == 1)
        found = None
        if members is not None:
            vector = torch.full((70,), float(c.rank))
            members.broadcast(vector, root=0).wait()
            found = members.rank, members.size, float(vector[-1])
        c.barrier().wait()
        if members is not None:
            members.close()
        return found

    assert groups.run(3, body) == [(1, 2, 2.0), None, (0, 2, 2.0)]


def test_close_wakes_a_peer_that_waits(groups: Groups) -> None:
    def body(c: Collectives) -> str:
        if c.rank == 0:
            c.close()
            return "closed"
        with pytest.raises(PeerLost):
            c.barrier().wait()
        return "lost"

    assert groups.run(3, body) == ["closed", "lost", "lost"]


def test_close_from_another_thread_wakes_this_worker_and_its_peers(groups: Groups) -> None:
    if not groups.threaded:
        pytest.skip("local workers have one thread among them")
    gone = threading.Event()

    def body(c: Collectives) -> str:
        if c.rank == 2:  # does not come to the meeting
            gone.wait(20)
            return "absent"
        handle = c.barrier()
        if c.rank == 0:
            threading.Timer(0.05, c.close).start()
        with pytest.raises(PeerLost):
            handle.wait()
        gone.set()
        return "lost"

    assert groups.run(3, body) == ["lost", "lost", "absent"]


def test_what_was_sent_before_a_close_arrives(groups: Groups) -> None:
    def body(c: Collectives) -> Tensor:
        vector = c.replicated("vector", NUMEL)
        vector[c.span(NUMEL)] = 1.0
        c.all_gather(vector).wait()  # the first one through closes at once
        return vector.clone()

    for vector in groups.run(3, body):
        assert bool((vector == 1).all())


def test_an_error_in_one_worker_ends_the_others(groups: Groups) -> None:
    def body(c: Collectives) -> None:
        if c.rank == 1:
            raise ZeroDivisionError
        for _ in range(3):
            c.all_gather(c.replicated("vector", NUMEL)).wait()

    with pytest.raises((ZeroDivisionError, PeerLost)):
        groups.run(2, body)


def test_waiting_is_counted(groups: Groups) -> None:
    if not groups.threaded:
        pytest.skip("the local transport has a virtual clock")
    late = Latecomer()

    def body(c: Collectives) -> float:
        if c.rank == 1:
            late.come(after_s=0.05)
        else:
            late.expect()
        c.barrier().wait()
        return c.waited_s

    assert groups.run(2, body)[0] > 0.02


def _dies_in_the_second_meeting(kind: str, folder: Path, port: int) -> None:
    c = join(kind, folder, port, 0, rank=1, size=2)
    vector = c.replicated("vector", NUMEL)
    vector[c.span(NUMEL)] = 1.0
    c.all_gather(vector, signal=5).wait()
    os._exit(0)


def test_a_process_that_dies_is_a_lost_peer(groups: Groups) -> None:
    """Real processes: what one wrote before it died is there, and then the survivor is told."""
    if not groups.threaded:
        pytest.skip("local workers are one process")
    port = groups.rendezvous.port if groups.rendezvous else 0
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_dies_in_the_second_meeting, args=(groups.kind, groups.folder, port))
    process.start()
    with groups.joined(0, 0, 2) as c:
        vector = c.replicated("vector", NUMEL)
        vector[c.span(NUMEL)] = 1.0
        assert c.all_gather(vector, signal=1).wait() == 5
        assert bool((vector == 1).all())
        with pytest.raises(PeerLost):
            c.barrier().wait()
    process.join()
