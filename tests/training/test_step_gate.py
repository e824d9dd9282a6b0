"""The gate in front of every step."""

from collections.abc import Callable
from threading import Thread

import pytest

from trainers.training.step_gate import StepGate

SAID: dict[str, Callable[[StepGate], object]] = {
    "hold": StepGate.hold,
    "release": StepGate.release,
    "two more": lambda gate: gate.release(limit=gate.begun + 2),
}


@pytest.mark.parametrize("before", SAID)
@pytest.mark.parametrize("after", SAID)
def test_a_gate_that_was_closed_stays_so_whatever_is_heard_around_it(before: str, after: str) -> None:
    gate = StepGate()
    assert gate.enter()
    SAID[before](gate)
    gate.close()
    SAID[after](gate)
    assert not gate.enter()


def test_who_waits_at_a_gate_hears_that_it_closes() -> None:
    gate, entered = StepGate(), list[bool]()
    gate.hold()
    waits = Thread(target=lambda: entered.append(gate.enter()))
    waits.start()
    gate.close()
    waits.join(60)
    assert entered == [False]


def test_who_is_held_goes_on_as_far_as_it_may() -> None:
    gate = StepGate()
    assert gate.enter()
    assert gate.hold() == 1
    gate.release(limit=3)
    assert [gate.enter() for _ in range(4)] == [True, True, False, False]
