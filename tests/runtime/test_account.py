"""What the workers tell is added up the same in whatever order it arrives."""

from itertools import permutations

import pytest

from trainers.runtime.account import Account
from trainers.runtime.messages import Tally


def tally(number: int, updates: int, learning_rate: float) -> Tally:
    """Of a synchronous worker, after so many steps of ten examples."""
    return Tally(
        number, 0, 1, 5, 1.0, learning_rate, 0.0, 0.0, 0.0, {0: (1.0, 5)}, updates=updates, reached=10 * updates
    )


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_order_of_reports_comes_to_the_same(order: tuple[int, ...]) -> None:
    told = [tally(0, 1, 0.1), tally(0, 2, 0.2), tally(1, 1, 0.1), tally(1, 2, 0.2)]
    account = Account(20)
    account.begin([0, 1], 0)
    for index in order:
        account.add(told[index])
    assert (account.examples, account.updates, account.learning_rate) == (20, 2, 0.2)
    assert account.epoch_is_done(0)
    assert account.train_loss(0) == 0.2
