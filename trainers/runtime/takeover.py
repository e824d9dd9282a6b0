"""A coordinator that has died comes back, and takes over whoever lived on."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from trainers.events import State
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.crew import CONTROL, Hired
from trainers.runtime.journal import JournalReader
from trainers.runtime.messages import Ended, Resigned

TAKES_OVER = "CoordinatorDied"
"""The reason that a coordinator gives for its first state where it takes another's place."""
ANSWER_S = 15.0
"""A worker that does not give up its generation within this time is not taken over."""


@dataclass(frozen=True)
class Past:
    """What the log tells of the time before."""

    is_over: bool = False
    """Whether its last word was said."""
    stops_as: State | None = None
    """What it was about to become, if it was told to stop."""
    epochs: int = 0
    """How many were told."""
    accuracies: list[tuple[int, float]] = field(default_factory=list)
    deaths: int = 0
    """Of coordinators."""


@dataclass
class Survivors:
    """Who lives, and how each worker's training ended."""

    workers: list[Hired]
    shards: dict[int, Any]
    """By index."""
    endings: list[Ended]
    generation: int
    """The newest that any of them was in."""
    seats: int
    """The highest that any of them had."""
    evaluators: list[Any]


def past(run_dir: Path) -> Past:
    """Read the log."""
    events = list(JournalReader(run_dir).read())
    states = [State(event.data["state"]) for event in events if event.type == "state"]
    last = states[-1] if states else State.STARTING
    stops = {State.CANCELLING: State.CANCELLED, State.PAUSING: State.PAUSED}
    epochs = max((e.data["epoch"] for e in events if e.type == "epoch"), default=0)
    told = [(e.data["epoch"], e.data["test_accuracy"]) for e in events if e.type == "evaluation"]
    deaths = sum(event.type == "state" and event.data["reason"] == TAKES_OVER for event in events)
    return Past(last.is_terminal or last in (State.PAUSED, State.QUEUED), stops.get(last), epochs, told, deaths)


async def survivors(job_id: str, term: int) -> Survivors:
    """Find them by name, and have the workers end their generation for the coordinator that comes after `term` dead
    ones."""
    found = Survivors([], {}, [], -1, -1, [])
    named = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}
    for name in sorted(named):
        kind, _, number = name.removeprefix(f"{job_id}/").partition("/")
        if not name.startswith(f"{job_id}/") or kind.startswith("coordinator"):
            continue
        with suppress(ValueError):
            actor = ray.get_actor(name, NAMESPACE)
            if kind == "worker":
                found.workers.append(Hired(int(number), name, actor, _reservation(name)))
            elif kind == "shard":
                found.shards[int(number.partition("-")[0])] = actor
            elif kind == "copy":  # what it was told last, nobody knows: another is started
                ray.kill(actor)
            else:
                found.evaluators.append(actor)
    resigned = await asyncio.gather(*[_resigned(worker, term) for worker in found.workers])
    for worker, told in zip(list(found.workers), resigned, strict=True):
        if told is None:  # it was not ready, or is dead or deaf: another will be hired
            found.workers.remove(worker)
            with suppress(ValueError):
                ray.kill(worker.actor)
            continue
        worker.prepared = told.prepared
        found.endings += [told.ended] if told.ended is not None else []
        found.generation, found.seats = max(found.generation, told.generation), max(found.seats, told.seat)
    return found


async def _resigned(worker: Hired, term: int) -> Resigned | None:
    with suppress(ray.exceptions.RayError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            told: Resigned | None = await worker.actor.resign.options(concurrency_group=CONTROL).remote(term)
            return told
    return None


def _reservation(name: str) -> Any:
    with suppress(ValueError):
        return ray.util.get_placement_group(name)
    return None
