"""What is folded from the `step` events of a log."""

import pytest

from service.scaling.counted import Counted
from trainers import Event


def counted(*steps: tuple[float, int, int]) -> Counted:
    found = Counted()
    for seq, (time, examples, sent) in enumerate(steps, 1):
        data = {"examples": examples, "sent_bytes": sent, "pushed_bytes": 3, "fetched_bytes": 4}
        found.add(Event(seq=seq, time=time, type="step", data=data | {"staleness": {"0": 1, "2": seq}}))
    return found


def test_bytes_an_example_count_what_was_trained_again_too() -> None:
    found = counted((0.0, 10, 50), (1.0, 20, 50), (2.0, 15, 20), (3.0, 20, 20)).quantities  # it went back to 15
    assert found["bytes sent an example"] == 140 / 25
    assert found["bytes to and from shards an example"] == 4 * 7 / 25
    assert found["staleness"] == pytest.approx(2 * 4 / 5)


def test_the_rate_is_that_of_the_steady_part() -> None:
    found = counted((0.0, 10, 0), (10.0, 20, 0), (11.0, 50, 0), (12.0, 80, 0), (40.0, 100, 0)).quantities
    assert found["examples a second"] == pytest.approx(30)
    assert "examples a second" not in counted((0.0, 10, 0), (1.0, 20, 0)).quantities
    assert Counted().quantities == {}
