"""The all-reduce algorithms against the formulas and the descriptions of paper 4, section 4.1."""

import math

import pytest
import torch
from torch import Tensor

from trainers.collectives.all_reduce.base import AllReduce, AllReduceCost
from trainers.collectives.all_reduce.binary_blocks import BINARY_BLOCKS, blocks, halvings
from trainers.collectives.all_reduce.choice import BYTES_PER_S, CHANGING, STEP_S, choose
from trainers.collectives.all_reduce.ring import RING
from trainers.collectives.all_reduce.three_phase import firsts, three_phase
from trainers.collectives.local import local_collectives
from trainers.collectives.messages import Messages
from trainers.links.local import LocalWorld


def values(rank: int, numel: int) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank))


def counted(all_reduce: AllReduce, nodes: tuple[int, ...], numel: int) -> list[AllReduceCost]:
    """Steps, and bytes sent in units of the vector's, of each worker; local workers, after checking the sum."""
    world = LocalWorld(3)
    members = local_collectives(world, len(nodes))
    vectors = [values(rank, numel) for rank in range(len(nodes))]
    expected = torch.stack(vectors).sum(0)

    def worker(rank: int) -> AllReduceCost:
        lane = members[rank].lane(0)
        lane.messages.nodes = nodes
        lane.begin(lambda messages: all_reduce(messages, vectors[rank])).wait()
        return AllReduceCost(lane.messages.steps, members[rank].meter.counted.sent_bytes / (4 * numel))

    found = world.run([lambda rank=rank: worker(rank) for rank in range(len(nodes))])
    for vector in vectors:
        torch.testing.assert_close(vector, expected, rtol=1e-5, atol=1e-5)
    assert sum(m.meter.counted.sent_bytes for m in members) == sum(m.meter.counted.received_bytes for m in members)
    return found


@pytest.mark.parametrize("p", range(1, 9))
def test_the_ring_sends_2_p_minus_1_over_p_of_the_vector_in_2_p_minus_1_steps(p: int) -> None:
    found = counted(RING, (0,) * p, 64 * p * 3)
    assert found == [RING.cost(p)] * p == [AllReduceCost(2 * (p - 1), 2 * (p - 1) / p)] * p


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_halving_and_doubling_sends_as_much_in_2_log_p_steps(p: int) -> None:
    algorithm = choose("halving_doubling", (0,) * p, 1000)
    found = counted(algorithm, (0,) * p, 64 * p * 3)
    assert found == [algorithm.cost(p)] * p == [AllReduceCost(2 * int(math.log2(p)), 2 * (p - 1) / p)] * p


@pytest.mark.parametrize(
    ("p", "sizes"), [(3, [2, 1]), (5, [4, 1]), (6, [4, 2]), (7, [4, 2, 1]), (11, [8, 2, 1]), (12, [8, 4])]
)
def test_binary_blocks_take_two_steps_more_for_each_neighbouring_block(p: int, sizes: list[int]) -> None:
    assert [len(block) for block in blocks(p)] == sizes
    found = counted(BINARY_BLOCKS, (0,) * p, 64 * 8 * 3)
    expected = []
    for i, size in enumerate(sizes):
        neighbours = (i > 0) + (i < len(sizes) - 1)
        own = 2 * (size - 1) / size
        expected += [AllReduceCost(2 * int(math.log2(size)) + 2 * neighbours, own + neighbours / size)] * size
    assert found == expected
    worst = BINARY_BLOCKS.cost(p)
    assert worst == AllReduceCost(max(c.steps for c in expected), max(c.vectors for c in expected))


def test_the_first_steps_of_halving_as_the_paper_tells_them() -> None:
    """Rank 0 sends the second half to 1 and keeps the first; then the distance is doubled and the data halved."""
    rank_0, rank_1 = halvings(0, 8, range(8)), halvings(1, 8, range(8))
    assert [h.partner for h in rank_0] == [1, 2, 4]
    assert [h.partner for h in rank_1] == [0, 3, 5]
    assert (rank_0[0].kept, rank_0[0].given) == (range(4), range(4, 8))
    assert (rank_1[0].kept, rank_1[0].given) == (range(4, 8), range(4))
    assert [len(h.given) for h in rank_0] == [4, 2, 1]
    assert sorted(halvings(rank, 8, range(8))[-1].kept.start for rank in range(8)) == list(range(8))


@pytest.mark.parametrize(("nodes", "leaders"), [((0, 0, 0, 1, 1, 1, 2, 2), [0, 3, 6]), ((0, 1, 0, 1), [0, 1])])
def test_in_three_phases_one_vector_a_node_travels_between_the_nodes(
    nodes: tuple[int, ...], leaders: list[int]
) -> None:
    assert firsts(nodes) == leaders
    between: list[int] = []

    def reduce_scatter(messages: Messages, vector: Tensor) -> slice:
        between.append(messages.size)
        return RING.reduce_scatter(messages, vector)

    q = len(leaders)
    spied = AllReduce("ring", reduce_scatter, RING.all_gather, RING.cost)
    algorithm = three_phase(spied, nodes)
    found = counted(algorithm, nodes, 64 * q * 2)
    assert between == [q] * q
    for rank, cost in enumerate(found):
        levels = math.ceil(math.log2(nodes.count(nodes[rank])))  # within the node, before and after
        leader = 2 * levels + 2 * (q - 1), pytest.approx(levels + 2 * (q - 1) / q)
        assert (cost.steps, cost.vectors) == (leader if rank in leaders else (2, 1.0))
    worst, told = max(found, key=lambda cost: cost.steps), algorithm.cost(len(nodes))
    assert (worst.steps, worst.vectors) == (told.steps, pytest.approx(told.vectors))


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("numel", [1, 7, 65, 1000])
def test_vectors_of_any_size(p: int, numel: int) -> None:
    for algorithm in (RING, BINARY_BLOCKS, three_phase(RING, (0,) * p)):
        counted(algorithm, (0,) * p, numel)


@pytest.mark.parametrize(
    ("p", "steps", "vectors"),
    [(4, (4, 6), (1.5, 1.5)), (7, (6, 12), (2, 12 / 7)), (8, (6, 14), (1.75, 1.75))],
    ids=["4", "7", "8"],
)
def test_auto_weighs_latency_against_bandwidth(
    p: int, steps: tuple[int, int], vectors: tuple[float, float]
) -> None:  # fmt: skip
    """Steps and vectors by blocks, whose partners change, and around the ring."""
    even = (steps[1] - steps[0]) * STEP_S / (CHANGING * vectors[0] - vectors[1]) * BYTES_PER_S / 4
    assert choose("auto", (0,) * p, int(0.9 * even)).name == "binary_blocks"
    assert choose("auto", (0,) * p, int(1.1 * even)).name == "ring"


def test_auto_goes_by_the_nodes() -> None:
    assert choose("auto", (0, 1), 10**9).name == "binary_blocks"  # with one partner
    assert choose("auto", (0, 0, 1, 1), 1000).name == "three_phase"
    assert choose("auto", (0, 1, 2), 10**9).name == "ring"
    assert choose("ring", (0, 0, 1, 1), 1000).name == "ring"
