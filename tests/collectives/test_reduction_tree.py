"""The canonical tree: the same sum, to the bit, on every number of workers."""

import random

import pytest
import torch
from torch import Tensor

from trainers.collectives.reduction_tree import TreeSum, add_last, block, covers, depth, middle, subtrees, sum_leaves


def leaves(num_virtual: int, numel: int, seed: int = 0) -> list[Tensor]:
    """Vectors of very different sizes, so that the order of adding shows."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) * 10.0 ** (i % 6) for i in range(num_virtual)]


def whole_sum(num_virtual: int, num_workers: int, vectors: list[Tensor]) -> Tensor:
    """What the workers sum and ship, put together."""
    parts = {}
    for rank in range(num_workers):
        for node in subtrees(num_virtual, *block(num_virtual, rank, num_workers)):
            buffers = [torch.full_like(vectors[0], torch.nan) for _ in range(depth(node))]
            sum_leaves(node, buffers, lambda leaf, into: into.copy_(vectors[leaf]))
            parts[node] = buffers[0]
    assert covers(num_virtual, parts)
    return TreeSum(num_virtual, parts).piece(0, len(vectors[0]))


@pytest.mark.parametrize("num_virtual", range(1, 34))
def test_blocks_and_their_subtrees_hold_every_leaf_once(num_virtual: int) -> None:
    for num_workers in range(1, num_virtual + 1):
        held: list[int] = []
        for rank in range(num_workers):
            lo, hi = block(num_virtual, rank, num_workers)
            assert hi > lo
            nodes = subtrees(num_virtual, lo, hi)
            assert [leaf for a, b in nodes for leaf in range(a, b)] == list(range(lo, hi))
            assert len(nodes) <= 2 * num_virtual.bit_length()
            held += range(lo, hi)
        assert held == list(range(num_virtual))


def test_subtrees_are_nodes_of_the_tree_and_as_large_as_can_be() -> None:
    def nodes(lo: int, hi: int) -> set[tuple[int, int]]:
        if hi - lo == 1:
            return {(lo, hi)}
        return {(lo, hi)} | nodes(lo, middle(lo, hi)) | nodes(middle(lo, hi), hi)

    dice = random.Random(1)
    for _ in range(200):
        num_virtual = dice.randint(1, 33)
        lo = dice.randrange(num_virtual)
        hi = dice.randint(lo + 1, num_virtual)
        tree, found = nodes(0, num_virtual), subtrees(num_virtual, lo, hi)
        assert set(found) <= tree
        for node in found:
            larger = [(a, b) for a, b in tree if a <= node[0] and node[1] <= b and (a, b) != node]
            assert not [(a, b) for a, b in larger if lo <= a and b <= hi]


@pytest.mark.parametrize("num_virtual", [*range(1, 18), 31, 32, 33])
def test_the_same_bits_on_every_number_of_workers(num_virtual: int) -> None:
    vectors = leaves(num_virtual, 37, seed=num_virtual)
    one = whole_sum(num_virtual, 1, vectors)
    for num_workers in range(2, num_virtual + 1):
        assert torch.equal(one, whole_sum(num_virtual, num_workers, vectors))


def test_the_trees_written_out() -> None:
    a, b, c, d, e, f, g = leaves(7, 50)
    written = {
        2: a + b,
        3: (a + b) + c,
        4: (a + b) + (c + d),
        5: ((a + b) + (c + d)) + e,
        6: ((a + b) + (c + d)) + (e + f),
        7: ((a + b) + (c + d)) + ((e + f) + g),
    }
    for num_virtual, expected in written.items():
        assert torch.equal(whole_sum(num_virtual, 1, [a, b, c, d, e, f, g]), expected)


def test_a_sum_from_left_to_right_has_other_bits() -> None:
    vectors = leaves(7, 50)
    assert not torch.equal(whole_sum(7, 3, vectors), sum(vectors[1:], vectors[0]))


def test_a_piece_is_the_piece_of_the_whole() -> None:
    vectors = leaves(5, 100)
    total = TreeSum(5, {(i, i + 1): vector for i, vector in enumerate(vectors)})
    assert torch.equal(total.piece(13, 77), total.piece(0, 100)[13:77])
    out = torch.empty(64)
    assert torch.equal(total.piece(13, 77, out), total.piece(13, 77))
    assert torch.equal(out, total.piece(13, 77)), "it is made there"


def test_what_is_missing_is_noticed() -> None:
    assert not covers(5, [(0, 4)])
    assert covers(5, [(4, 5), (0, 4)])


@pytest.mark.parametrize("num_virtual", range(1, 12))
def test_the_last_leaf_may_be_added_part_by_part(num_virtual: int) -> None:
    """With the same bits, for each subtree, in any order of the parts."""
    vectors = leaves(num_virtual, 50)
    for lo in range(num_virtual):
        for node in subtrees(num_virtual, lo, num_virtual):
            whole, by_parts = ([torch.full((50,), torch.nan) for _ in range(depth(node))] for _ in range(2))
            sum_leaves(node, whole, lambda leaf, into: into.copy_(vectors[leaf]))
            sum_leaves(node, by_parts, lambda leaf, into: into.copy_(vectors[leaf]), adds_last=False)
            for part in (slice(30, 50), slice(0, 7), slice(7, 30)):
                add_last(node, by_parts, part)
            assert torch.equal(by_parts[0], whole[0])
