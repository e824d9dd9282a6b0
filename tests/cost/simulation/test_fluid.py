"""Links that transfers share fairly, against examples worked by hand."""

import pytest
from simpy import Environment

from trainers.cost.simulation.fluid import Network, Route, fair_rates

A, B, BOTH = Route(("a",)), Route(("b",)), Route(("a", "b"))


def test_one_link_is_shared_equally() -> None:
    assert fair_rates({A: 4}, {"a": 10.0}) == {A: 2.5}


def test_what_one_cannot_use_the_others_have() -> None:
    """Two on `a`, one of them also on the narrow `b`: that has 2, and the other 10 - 2 (Bertsekas and Gallager)."""
    assert fair_rates({A: 1, BOTH: 1}, {"a": 10.0, "b": 2.0}) == {A: 8.0, BOTH: 2.0}
    limited = Route(("a",), most=1.0)
    assert fair_rates({A: 2, limited: 1}, {"a": 10.0}) == {A: 4.5, limited: 1.0}


def test_who_comes_later_slows_the_first_and_goes_on_alone() -> None:
    """10 units from 0 s and 10 from 5 s at 1 a second: 5 alone, then half each: through at 15 and at 20 s."""
    env, ends = Environment(), dict[str, float]()
    network = Network(env, {"a": 1.0})

    def send(name: str, at: float):  # type: ignore[no-untyped-def]
        yield env.timeout(at)
        yield network.transfer(A, 10.0)
        ends[name] = env.now

    env.process(send("first", 0.0))
    env.process(send("second", 5.0))
    env.run()
    assert ends == pytest.approx({"first": 15.0, "second": 20.0})
