"""What an actor does that hears nothing from its coordinator: it looks, and ends only when there is none any more."""

import time
from typing import Any

import pytest
import ray

from trainers.runtime.actors import coordinator_watch
from trainers.runtime.actors.coordinator_watch import MISSES, CoordinatorWatch
from trainers.runtime.processes import ProcessId


class Rays:
    """What Ray says of the coordinator at each look; the last answer stays."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)
        self.looks = 0

    def get_actor(self, name: str, namespace: str) -> None:
        self.looks += 1
        if (answer := self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]) is not None:
            raise answer


class Node:
    """On which a coordinator runs, or does not."""

    def __init__(self) -> None:
        self.asked: list[Any] = []  # the processes that it was asked about
        self.runs: bool | None = False  # what it says; None: it does not answer

    def ask(self, node: str, act: Any, process: ProcessId) -> bool | None:
        self.asked.append(process)
        return self.runs


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node()
    monkeypatch.setattr(coordinator_watch, "LOOK_S", 0)
    monkeypatch.setattr(coordinator_watch, "SILENCE_S", 0.0)
    monkeypatch.setattr(coordinator_watch, "ask_on", node.ask)
    return node


def test_silence_alone_ends_nobody(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    """However long: the coordinator may be busy, or Ray not answer. Its name must be gone several times in a row."""
    gone = ValueError("no such actor")
    rays = Rays(*[None] * 50, gone, gone, *[ray.exceptions.RaySystemError("busy")] * 50, None, gone)
    monkeypatch.setattr(ray, "get_actor", rays.get_actor)
    CoordinatorWatch("job/coordinator").run()
    assert rays.looks == 50 + 2 + 50 + 1 + MISSES
    assert node.asked == []


@pytest.mark.parametrize(("runs", "times"), [(False, 1), (True, 3), (None, 3)])
def test_the_node_is_asked_until_the_coordinator_is_gone(
    monkeypatch: pytest.MonkeyPatch, node: Node, runs: bool | None, times: int
) -> None:
    """One that was stopped has been killed then, by this actor or by another. What starts the next one is not asked
    again and again: a node starts few processes at a time, and each question needs one."""
    monkeypatch.setattr(ray, "get_actor", Rays(None, None, None, ValueError()).get_actor)
    node.runs = runs
    watch = CoordinatorWatch("job/coordinator")
    watch.hear(process := ProcessId("a", 7, 1.0))
    watch.run()
    assert node.asked == [process] * times


def test_a_coordinator_that_has_many_to_ask_may_be_silent_for_longer(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    """As long as it has said; it is gone then."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def get_actor(*_: object) -> None:
        looked_at.append(now_s)
        raise ValueError

    looked_at: list[float] = []
    monkeypatch.setattr(coordinator_watch, "SILENCE_S", 6.0)
    monkeypatch.setattr(coordinator_watch, "LOOK_S", 1.0)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(time, "sleep", sleep)
    watch = CoordinatorWatch("job/coordinator")
    watch.clock.read = lambda: now_s  # type: ignore[method-assign]
    watch.hear(ProcessId("a", 7, 1.0), turn_s=4.5)
    watch.run()
    assert looked_at[0] == 11.0


def test_a_coordinator_that_is_found_running_is_looked_at_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, node: Node
) -> None:
    """Until it is heard, or gone."""
    pauses: list[float] = []
    watch = CoordinatorWatch("job/coordinator")

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            monkeypatch.setattr(coordinator_watch, "SILENCE_S", 1e9)  # it is heard
        elif len(pauses) == 8:
            monkeypatch.setattr(coordinator_watch, "SILENCE_S", 0.0)

    monkeypatch.setattr(ray, "get_actor", Rays(*[None] * 8, ValueError()).get_actor)
    monkeypatch.setattr(coordinator_watch, "LOOK_S", 2.0)
    monkeypatch.setattr(time, "sleep", sleep)
    node.runs = True
    watch.hear(ProcessId("a", 7, 1.0))
    watch.run()
    assert pauses[:9] == [2, 4, 8, 16, 16, 16, 16, 2, 4]
    assert pauses[-MISSES + 1 :] == [2] * (MISSES - 1)
