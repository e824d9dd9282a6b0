"""Actors that are objects of this process; a test decides what they answer."""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import ray

from trainers.training.messages import GenerationEnd


def died() -> Exception:
    """What Ray raises for the calls of an actor whose process is gone."""
    return ray.exceptions.ActorDiedError()


def ended_by_ray() -> Exception:
    """What Ray raises for them where its own monitor has ended the process."""
    return ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")


class FakeActor:
    """Answers every method from `answers`, an exception by raising it, a queue one by one and then not any more, and
    a function by calling it a moment later; but for `train`, which a test ends."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.training: asyncio.Future[GenerationEnd]

    def __getattr__(self, name: str) -> "FakeMethod":
        return FakeMethod(self, name)

    def called(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of all calls of a method."""
        return [arguments for method, arguments in self.calls if method == name]


@dataclass(frozen=True)
class FakeMethod:
    """One method of an actor, called as Ray has it."""

    actor: FakeActor
    name: str

    def options(self, **_: Any) -> "FakeMethod":
        return self

    def remote(self, *arguments: Any) -> "asyncio.Future[Any]":
        self.actor.calls.append((self.name, arguments))
        answer = asyncio.get_running_loop().create_future()
        if self.name == "train":
            self.actor.training = answer
            return answer
        found = self.actor.answers.get(self.name, 0)
        if isinstance(found, deque):
            if not found:
                return answer
            found = found.popleft()
        if callable(found):
            asyncio.get_running_loop().call_later(0.001, lambda: answer.set_result(found()))
        elif isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
        return answer


class FakeStandbys:
    """Shards without a second copy."""

    def close(self) -> None:
        pass
