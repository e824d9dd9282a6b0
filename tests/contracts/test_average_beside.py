"""Averages beside the caller: the bits of the canonical tree on every transport, while other calls go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import KINDS, Groups, rendezvous_for
from trainers.collectives.average import Average, GroupAverages
from trainers.collectives.beside.average import AverageBeside
from trainers.collectives.protocol import Collectives
from trainers.errors import PeerLost

V, NUMEL = 5, 200


@pytest.fixture(params=KINDS)
def groups(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Groups]:
    with rendezvous_for(request.param) as rendezvous:
        yield Groups(request.param, tmp_path, rendezvous)


def leaf(rank: int, scale: float = 1.0, numel: int = NUMEL) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank)) * scale


@pytest.mark.parametrize("size", [1, 2, 3])
def test_it_has_the_bits_of_an_average_while_other_calls_go_on(groups: Groups, size: int) -> None:
    """Two are under way, of which one is of so few elements that some workers have none to add up."""

    def body(collectives: Collectives) -> bool:
        plain, beside = Average(collectives, V, NUMEL), AverageBeside(collectives, V)
        first = beside.begin(NUMEL, lambda rank, into: into.copy_(leaf(rank)), 7)
        second = beside.begin(10, lambda rank, into: into.copy_(leaf(rank, 3, 10)), 3)
        plain.update(lambda rank, into: into.copy_(leaf(rank)), 7)
        collectives.barrier().wait()
        found = first.wait()
        assert found.data_ptr() == first.wait().data_ptr()
        parts = [leaf(rank, 3, 10) for rank in range(V)]
        tree = ((parts[0] + parts[1]) + (parts[2] + parts[3])) + parts[4]
        equal = torch.equal(found, plain.newest) and torch.equal(second.wait(), tree / 3)
        collectives.barrier().wait()  # nobody closes while another still waits
        return equal

    assert all(groups.run(size, body))


def test_what_a_worker_adds_is_taken_when_the_average_begins(groups: Groups) -> None:
    def body(collectives: Collectives) -> Tensor:
        mine = {rank: leaf(rank) for rank in range(V)}
        under_way = AverageBeside(collectives, V).begin(NUMEL, lambda rank, into: into.copy_(mine[rank]), V)
        for vector in mine.values():
            vector.zero_()
        found = under_way.wait()
        collectives.barrier().wait()
        return found

    for found in groups.run(2, body):
        torch.testing.assert_close(found, torch.stack([leaf(rank) for rank in range(V)]).mean(0))


def test_a_peer_that_closes_ends_it(groups: Groups) -> None:
    def body(collectives: Collectives) -> None:
        beside = AverageBeside(collectives, V)
        collectives.barrier().wait()
        if collectives.rank:
            collectives.close()
            return
        with pytest.raises(PeerLost):
            beside.begin(NUMEL, lambda rank, into: into.copy_(leaf(rank)), V).wait()

    groups.run(2, body)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_groups_average_by_themselves_with_the_same_bits(groups: Groups, size: int) -> None:
    """Two groups of three of six: on 2 workers each has one, on 4 each group is on two."""

    def body(collectives: Collectives) -> dict[int, Tensor]:
        found = GroupAverages(collectives, 6, 3, NUMEL).of(lambda rank, into: into.copy_(leaf(rank, 10.0**rank)))
        collectives.barrier().wait()
        return {ranks.start: mean for ranks, mean in found}

    for mine in groups.run(size, body):
        for first, mean in mine.items():
            a, b, c = (leaf(first + k, 10.0 ** (first + k)) for k in range(3))
            assert torch.equal(mean, ((a + b) + c) / 3)
            assert not torch.equal(mean, (a + (b + c)) / 3)


def test_what_a_group_on_one_node_averages_stays_there(tmp_path: Path) -> None:
    def body(collectives: Collectives) -> tuple[int, int]:
        GroupAverages(collectives, 4, 2, NUMEL).of(lambda rank, into: into.copy_(leaf(rank)))
        collectives.barrier().wait()
        counted = collectives.meter.counted
        return counted.sent_bytes, counted.crossed_bytes

    with rendezvous_for("hierarchical") as rendezvous:
        sent = Groups("hierarchical", tmp_path / "near", rendezvous, nodes=(0, 0, 1, 1)).run(4, body)
        assert sent == [(4 * NUMEL, 0)] * 4  # half of a part, and half of the mean
        apart = Groups("hierarchical", tmp_path / "apart", rendezvous, nodes=(0, 1, 1, 0)).run(4, body)
        assert all(crossed == bytes_ for bytes_, crossed in apart)
