"""What point-to-point messages and lanes must do on every transport that has them, and every all-reduce over them."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import KINDS, Groups, Latecomer, join, rendezvous_for
from trainers.collectives.all_reduce.choice import choose
from trainers.collectives.messages import Messages, SubgroupMessages
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import ReducedSpan, Reduction
from trainers.errors import PeerLost
from trainers.optim.slices import spans

LARGE = 600_000
"""Elements that no socket takes at once."""

ALGORITHMS = ("ring", "binary_blocks", "three_phase", "auto")


@pytest.fixture(params=KINDS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    with rendezvous_for(request.param) as rendezvous:
        yield Groups(request.param, tmp_path, rendezvous)


def values(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def through(exchange: Callable[[Messages], None]) -> Callable[[Collectives], Messages]:
    """The body of a worker that makes one exchange on one lane; the messages with their counts."""

    def body(c: Collectives) -> Messages:
        lane = c.lane(0)
        lane.begin(exchange).wait()
        c.barrier().wait()  # nobody closes while another still reads
        return lane.messages

    return body


def test_vectors_arrive_whole_and_in_the_order_in_which_they_left(groups: Groups) -> None:
    sizes = [1, 700, 3, LARGE, 64, 65, 0, 5]
    found: list[Tensor] = []

    def exchange(messages: Messages) -> None:
        vectors = [values(i, numel) for i, numel in enumerate(sizes)]
        if messages.rank == 0:
            for vector in vectors:
                messages.send(vector, to=1).wait()
                vector.fill_(-1.0)  # it is the sender's again
        else:
            for numel in sizes:
                found.append(torch.full((numel,), -2.0))
                messages.receive(found[-1], source=0).wait()

    groups.run(2, through(exchange))
    for i, vector in enumerate(found):
        assert torch.equal(vector, values(i, sizes[i]))


def test_a_step_sends_and_receives_at_the_same_time(groups: Groups) -> None:
    """Everyone to everyone, more than the system holds: whoever sent first and received later would stand still."""
    size, found = 3, dict[tuple[int, int], Tensor]()

    def exchange(messages: Messages) -> None:
        others = [k for k in range(size) if k != messages.rank]
        for k in others:
            found[k, messages.rank] = torch.zeros(LARGE)
        send = [(values(10 * messages.rank + k, LARGE), k) for k in others]
        messages.step(send, [(found[k, messages.rank], k) for k in others])

    for messages in groups.run(size, through(exchange)):
        assert messages.steps == 1
    assert len(found) == 6
    for (source, to), vector in found.items():
        assert torch.equal(vector, values(10 * source + to, LARGE))


def test_what_moves_and_the_steps_are_counted(groups: Groups) -> None:
    def exchange(messages: Messages) -> None:
        if messages.rank == 0:
            messages.step(send=[(torch.ones(7), 1), (torch.ones(0), 2)])
        if messages.rank == 1:
            messages.step(receive=[(torch.ones(7), 0)])
        SubgroupMessages(messages, [2, 0, 1]).step(
            [(torch.ones(5), (messages.rank + 2) % 3)], [(torch.ones(5), messages.rank)]
        )

    counted = groups.run(3, through(exchange))
    assert [m.steps for m in counted] == [2, 2, 1]
    moved = [m.meter.counted for m in counted]
    assert [(one.sent_bytes, one.received_bytes) for one in moved] == [(48, 20), (20, 48), (20, 20)]


def test_exchanges_of_a_lane_follow_each_other_and_lanes_do_not_mix(groups: Groups) -> None:
    """The same pair on two lanes, begun in the same order; what arrives belongs to the lane."""

    def body(c: Collectives) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []

        def exchange(number: int) -> Callable[[Messages], None]:
            def talk(messages: Messages) -> None:
                vector = torch.zeros(3)
                messages.step([(torch.full((3,), float(number)), 1 - messages.rank)], [(vector, 1 - messages.rank)])
                found.append((number, float(vector[2])))

            return talk

        lanes = [c.lane(index) for index in range(2)]
        handles = [lanes[number % 2].begin(exchange(number)) for number in range(8)]
        for handle in handles:
            handle.wait()
        c.barrier().wait()
        return found

    for found in groups.run(2, body):
        assert sorted(found) == [(number, float(number)) for number in range(8)]
        for lane in range(2):
            assert [number for number, _ in found if number % 2 == lane] == list(range(lane, 8, 2))


def test_an_exchange_goes_on_beside_the_caller(groups: Groups) -> None:
    """Worker 1 sends once worker 0 has come to the meeting: it must not stand still in `begin`."""

    def body(c: Collectives) -> Tensor:
        lane, vector = c.lane(0), torch.full((4,), float(c.rank))
        if c.rank == 0:
            handle = lane.begin(lambda messages: messages.step(receive=[(vector, 1)]))
            c.barrier().wait()
            handle.wait()
        else:
            c.barrier().wait()
            lane.begin(lambda messages: messages.step(send=[(vector, 0)])).wait()
        c.barrier().wait()
        return vector

    assert torch.equal(groups.run(2, body)[0], torch.ones(4))


def test_waiting_for_an_exchange_is_counted(groups: Groups) -> None:
    if not groups.threaded:
        pytest.skip("the local transport has a virtual clock")
    late = Latecomer()

    def body(c: Collectives) -> float:
        lane = c.lane(0)
        if c.rank == 1:
            late.come(after_s=0.05)
        else:
            late.expect()
        lane.begin(lambda m: m.step([(torch.ones(3), 1 - m.rank)], [(torch.ones(3), 1 - m.rank)])).wait()
        waited = c.waited_s
        c.barrier().wait()
        return waited

    assert groups.run(2, body)[0] > 0.02


# -- all-reduce ---------------------------------------------------------------------------------------------------


def summed(c: Collectives, algorithm: str, numels: list[int], nodes: tuple[int, ...] = ()) -> list[Tensor]:
    """The all-reduced vectors, one exchange each on two lanes in turn."""
    lanes = [c.lane(0), c.lane(1)]
    vectors = [values(c.rank, numel) for numel in numels]
    handles = []
    for i, vector in enumerate(vectors):
        all_reduce = choose(algorithm, nodes or c.nodes, len(vector))
        for lane in lanes:
            lane.messages.nodes = nodes or c.nodes
        handles.append(lanes[i % 2].begin(lambda messages, a=all_reduce, v=vector: a(messages, v)))
    for handle in handles:
        handle.wait()
    c.barrier().wait()
    return vectors


def assert_summed(found: list[list[Tensor]], numels: list[int]) -> None:
    for i, numel in enumerate(numels):
        expected = torch.stack([values(rank, numel) for rank in range(len(found))]).double().sum(0).float()
        for vectors in found:
            torch.testing.assert_close(vectors[i], expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(vectors[i], found[0][i]), "the bits differ between workers"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_all_reduce_gives_the_sum_and_the_same_bits_to_all(groups: Groups, algorithm: str) -> None:
    """Any number of workers, vectors smaller than that, and large ones."""
    for size in range(1, 9) if groups.kind == "local" else (2, 3, 4):
        numels = [1, size - 1, 64 * size + 5, 40_000]
        assert_summed(groups.run(size, lambda c, n=numels: summed(c, algorithm, n)), numels)


@pytest.mark.parametrize("algorithm", ["three_phase", "auto"])
@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 0, 2, 1, 0, 2)])
def test_all_reduce_over_nodes(groups: Groups, nodes: tuple[int, ...], algorithm: str) -> None:
    if groups.threaded and len(nodes) > 4:
        pytest.skip("so many workers on the local transport only")
    numels = [2, 1000]
    assert_summed(groups.run(len(nodes), lambda c: summed(c, algorithm, numels, nodes)), numels)


def test_the_test_above_can_fail() -> None:
    """Each worker adding the others' vectors in an order of its own gives each other bits."""
    vectors = [values(rank, 1000) for rank in range(3)]
    orders = [(0, 1, 2), (1, 2, 0)]
    one, other = (vectors[a] + vectors[b] + vectors[c] for a, b, c in orders)
    with pytest.raises(AssertionError, match="bits differ"):
        assert_summed([[one], [other], [one]], [1000])


# -- the transport's own way --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_buckets_summed_in_the_transports_own_way(groups: Groups, size: int) -> None:
    """Two buckets at a time, again and again; each worker doubles its shares of the sum before all are gathered."""
    numel, buckets = 64 * 20 + 16, [slice(64 * 7, 64 * 20 + 16), slice(16, 64 * 7), slice(0, 16)]

    def body(c: Collectives) -> list[Tensor]:
        (part,) = c.parts(Reduction(size, size, numel))
        vector, found = c.replicated("vector", numel), list[Tensor]()

        def finish(bucket: slice, share: ReducedSpan) -> None:
            n = share.span.stop - share.span.start
            vector[bucket][share.span] = 2 * share.gradient.piece(0, n)

        for again in range(3):
            part.copy_(values(c.rank + 10 * again, numel))
            handles = []
            for bucket in buckets:
                if len(handles) == 2:
                    earlier, handle = handles.pop(0)
                    finish(earlier, handle.wait())
                handles.append((bucket, c.sum_bucket(part, bucket)))
            for bucket, handle in handles:
                finish(bucket, handle.wait())
            c.gather_buckets(vector, buckets)
            found.append(vector.clone())
            c.barrier().wait()
        return found

    results = groups.run(size, body)
    for again in range(3):
        expected = 2 * torch.stack([values(rank + 10 * again, numel) for rank in range(size)]).sum(0)
        for found in results:
            torch.testing.assert_close(found[again], expected, rtol=1e-5, atol=1e-5)
            assert torch.equal(found[again], results[0][again])


def test_the_transports_own_way_sends_no_more_than_an_all_reduce(groups: Groups) -> None:
    numel = 64 * 12
    (bucket,) = spans(numel, 1)

    def body(c: Collectives) -> tuple[int, int]:
        (part,) = c.parts(Reduction(c.size, c.size, numel))
        c.sum_bucket(part, bucket).wait()
        c.gather_buckets(c.replicated("vector", numel), [bucket])
        return c.meter.counted.sent_bytes, c.meter.counted.received_bytes

    for size in (1, 2, 3):
        found, most = groups.run(size, body), 2 * (size - 1) * 4 * numel // size
        if groups.kind == "hierarchical":  # what comes from elsewhere is sent once and handed on inside the node
            assert [sum(counts) for counts in zip(*found, strict=True)] == [size * most] * 2
        else:
            assert found == [(most, most)] * size


# -- peers that go ------------------------------------------------------------------------------------------------


def test_a_peer_that_closes_ends_the_exchanges_of_all(groups: Groups) -> None:
    """Worker 2 waits for 1 and 1 for 0: who is told by a peer must tell the next, and not only when it closes."""
    told = threading.Barrier(2, timeout=60)

    def body(c: Collectives) -> str:
        lane = c.lane(0)
        c.barrier().wait()
        if c.rank == 0:
            c.close()
            return "closed"
        with pytest.raises(PeerLost):
            lane.begin(lambda messages: messages.step(receive=[(torch.ones(3), messages.rank - 1)])).wait()
        if groups.threaded:
            told.wait()
        return "lost"

    assert groups.run(3, body) == ["closed", "lost", "lost"]


def test_close_from_another_thread_ends_the_exchange_under_way(groups: Groups) -> None:
    if not groups.threaded:
        pytest.skip("local workers have one thread among them")

    def body(c: Collectives) -> str:
        lane = c.lane(0)
        handle = lane.begin(lambda messages: messages.step(receive=[(torch.ones(3), 1 - messages.rank)]))
        if c.rank == 0:
            threading.Timer(0.05, c.close).start()
        with pytest.raises(PeerLost):
            handle.wait()
        with pytest.raises(PeerLost):
            lane.begin(lambda messages: messages.step(receive=[(torch.ones(3), 1 - messages.rank)])).wait()
        return "lost"

    assert groups.run(2, body) == ["lost", "lost"]


def test_an_error_in_an_exchange_is_the_callers(groups: Groups) -> None:
    def body(c: Collectives) -> None:
        def exchange(messages: Messages) -> None:
            if messages.rank == 1:
                raise ZeroDivisionError
            messages.step(receive=[(torch.ones(3), 1)])

        c.lane(0).begin(exchange).wait()

    with pytest.raises((ZeroDivisionError, PeerLost)):
        groups.run(2, body)


def _dies_after_one_message(kind: str, folder: Path, port: int) -> None:
    c = join(kind, folder, port, 0, rank=1, size=2)
    c.lane(0).begin(lambda messages: messages.step(send=[(values(1, LARGE), 0)])).wait()
    os._exit(0)


def test_a_process_that_dies_is_a_lost_peer(groups: Groups) -> None:
    """Real processes: what one had sent before it died arrives, and then the survivor is told."""
    if not groups.threaded:
        pytest.skip("local workers are one process")
    port = groups.rendezvous.port if groups.rendezvous else 0
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_dies_after_one_message, args=(groups.kind, groups.folder, port))
    process.start()
    with groups.joined(0, 0, 2) as c:
        lane, vector = c.lane(0), torch.zeros(LARGE)
        lane.begin(lambda messages: messages.step(receive=[(vector, 1)])).wait()
        assert torch.equal(vector, values(1, LARGE))
        with pytest.raises(PeerLost):
            lane.begin(lambda messages: messages.step(receive=[(vector, 1)])).wait()
    process.join()
