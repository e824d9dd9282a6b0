"""The set of applied identities, held against a plain set of minibatches."""

import random

from trainers.parameter_server.push_identity import IdentitySet, PushIdentity


def test_it_is_a_set_of_minibatches() -> None:
    dice = random.Random(2)
    for _ in range(30):
        found, expected = IdentitySet(), set()
        for _ in range(60):
            epoch, group, first = dice.randrange(2), dice.randrange(2), dice.randrange(40)
            asked = PushIdentity(epoch, first, first + dice.randrange(4), group)
            numbers = {(epoch, group, i) for i in range(asked.first, asked.last + 1)}
            assert (asked in found) == (numbers <= expected)
            if dice.random() < 0.7:
                found.add(asked)
                expected |= numbers
                assert asked in found
        for epoch in range(2):
            for group in range(2):
                assert found.minibatches(epoch, group) == {i for e, g, i in expected if (e, g) == (epoch, group)}
        assert IdentitySet.from_json(found.to_json()).ranges == found.ranges


def test_neighbours_grow_together_whatever_their_order() -> None:
    numbers = list(range(1000))
    random.Random(3).shuffle(numbers)
    found = IdentitySet()
    for i in numbers:
        found.add(PushIdentity(4, i, i))
    assert found.to_json() == [[4, 0, 0, 999]]


def test_asking_remembers_nothing() -> None:
    found = IdentitySet()
    assert PushIdentity(0, 0, 0) not in found
    assert found.minibatches(7) == set()
    assert found.to_json() == []
