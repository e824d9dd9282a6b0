"""What an actor does that hears nothing from its coordinator: it looks, and ends only when there is none any more."""

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


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whom the watch has had killed if it is stopped, where every process is."""
    found: list[Any] = []
    monkeypatch.setattr(coordinator_watch, "LOOK_S", 0)
    monkeypatch.setattr(coordinator_watch, "SILENCE_S", 0.0)
    monkeypatch.setattr(coordinator_watch, "ask_on", lambda node, act, process: found.append(process) or True)
    return found


def test_silence_alone_ends_nobody(monkeypatch: pytest.MonkeyPatch, killed: list[Any]) -> None:
    """However long: the coordinator may be busy, or Ray not answer. Its name must be gone several times in a row."""
    gone = ValueError("no such actor")
    rays = Rays(*[None] * 50, gone, gone, *[ray.exceptions.RaySystemError("busy")] * 50, None, gone)
    monkeypatch.setattr(ray, "get_actor", rays.get_actor)
    CoordinatorWatch("job/coordinator").run()
    assert rays.looks == 50 + 2 + 50 + 1 + MISSES
    assert killed == []


def test_a_coordinator_that_is_stopped_is_killed_once(monkeypatch: pytest.MonkeyPatch, killed: list[Any]) -> None:
    monkeypatch.setattr(ray, "get_actor", Rays(None, None, None, ValueError()).get_actor)
    watch = CoordinatorWatch("job/coordinator")
    watch.hear(process := ProcessId("a", 7, 1.0))
    watch.run()
    assert killed == [process]
