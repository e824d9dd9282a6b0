"""The global order: a permutation each epoch, divided among all, a pure function of the seed."""

import random

import numpy as np
import pytest

from trainers.data.order import HeldOrder, Order, Partitions


@pytest.mark.parametrize(
    ("num_examples", "per_worker", "num_virtual"), [(203, 7, 3), (10, 32, 4), (64, 8, 8), (1, 1, 1)]
)
@pytest.mark.parametrize("kind", [Order, Partitions])
def test_each_epoch_is_a_permutation(num_examples: int, per_worker: int, num_virtual: int, kind: type[Order]) -> None:
    order = kind(num_examples, per_worker, num_virtual, seed=3)
    for epoch in range(4):
        parts = [order.examples(epoch, i) for i in range(order.minibatches)]
        assert [len(part) for part in parts] == [order.size(i) for i in range(order.minibatches)]
        assert sorted(np.concatenate(parts).tolist()) == list(range(num_examples))
        assert len(order.examples(epoch, order.minibatches)) == order.size(order.minibatches) == 0


def test_unshuffled_each_epoch_has_the_order_of_the_data() -> None:
    order = Order(203, 7, 3, seed=3, shuffle=False)
    for epoch in (0, 5):
        assert np.array_equal(np.concatenate([order.examples(epoch, i) for i in range(29)]), np.arange(203))
    kept, held = Partitions(203, 7, 3, seed=3, shuffle=False), HeldOrder(203, 7, 3, seed=3, shuffle=False)
    held.hold({rank: order.examples_of(rank, 0)[::-1] for rank in range(3)})
    for index in range(29):
        assert np.array_equal(kept.examples(4, index), order.examples(4, index))
        assert np.array_equal(held.examples(4, index), order.examples(4, index))


def test_steps_divide_an_epoch_unevenly_at_its_end() -> None:
    dice = random.Random(6)
    for _ in range(200):
        order = Order(dice.randint(1, 500), dice.randint(1, 20), dice.randint(1, 9), seed=0)
        sizes = [order.step_size(step) for step in range(order.steps)]
        assert sum(sizes) == order.num_examples
        assert all(size == order.per_worker * order.num_virtual for size in sizes[:-1])
        assert sizes[-1] > 0
        assert order.step_size(order.steps) == 0
        for step, size in enumerate(sizes):
            numbers = range(step * order.num_virtual, (step + 1) * order.num_virtual)
            assert sum(order.size(i) for i in numbers) == size


def test_it_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    def whole(seed: int, epoch: int, per_worker: int = 10) -> list[int]:
        order = Order(100, per_worker, 2, seed)
        return [int(e) for i in range(order.minibatches) for e in order.examples(epoch, i)]

    assert whole(1, 0) == whole(1, 0) == whole(1, 0, per_worker=7)
    assert whole(1, 0) != whole(2, 0)
    assert whole(1, 0) != whole(1, 1)
    order = Order(100, 10, 2, 1)
    ahead = order.examples(5, 0).tolist()
    assert order.examples(0, 0).tolist() == whole(1, 0)[:10]  # back in time
    assert order.examples(5, 0).tolist() == ahead
