"""Links that transfers share fairly, against examples worked by hand."""

import random
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest
from simpy import Environment, Event

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


@pytest.mark.parametrize("seed", range(5))
def test_transfers_at_random_end_when_their_rates_say(seed: int) -> None:
    """On three routes over two links, each against a plain account of what has flowed from one change to the next."""
    rng, env, ends = random.Random(seed), Environment(), dict[int, float]()
    capacities = {"a": 1.0, "b": 0.5}
    network = Network(env, capacities)
    sent = [
        (rng.uniform(0, 40), rng.choice([A, BOTH, Route(("b",), most=0.2)]), rng.expovariate(1.0)) for _ in range(60)
    ]

    def send(number: int, at: float, route: Route, units: float) -> Generator[Event, Any, None]:
        yield env.timeout(at)
        yield network.transfer(route, units)
        ends[number] = env.now

    for number, one in enumerate(sent):
        env.process(send(number, *one))
    env.run()
    assert [ends[number] for number in range(60)] == pytest.approx(account(sent, capacities))


def account(sent: list[tuple[float, Route, float]], capacities: dict[str, float]) -> list[float]:
    """When each is through."""
    left, ends, now = {number: units for number, (_, _, units) in enumerate(sent)}, [0.0] * len(sent), 0.0
    while left:
        under_way = [number for number in left if sent[number][0] <= now]
        rates = fair_rates(Counter(sent[number][1] for number in under_way), capacities)
        moments = [at for at, _, _ in sent if at > now]
        moments += [now + left[number] / rates[sent[number][1]] for number in under_way]
        passed, now = min(moments) - now, min(moments)
        for number in under_way:
            left[number] -= rates[sent[number][1]] * passed
            if left[number] < 1e-9:
                ends[number] = now
                del left[number]
    return ends


def test_a_link_that_is_used_for_a_millisecond_a_day_comes_to_an_end() -> None:
    """The clock then knows no moment between an alarm and the end of what it was for."""
    rng, env = random.Random(0), Environment()
    network = Network(env, {"a": 1.0})

    def send() -> Generator[Event, Any, None]:
        for _ in range(50):
            yield env.timeout(86_400 * rng.uniform(0.5, 1.5))
            yield network.transfer(A, 0.001 * rng.uniform(0.5, 1.5))

    senders = [env.process(send()) for _ in range(2)]
    for _ in range(2_000):  # 8 for each of a hundred transfers are plenty
        if senders[0].processed and senders[1].processed:
            break
        env.step()
    assert all(sender.processed for sender in senders)
