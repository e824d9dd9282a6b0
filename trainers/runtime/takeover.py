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
from trainers.runtime.messages import Ended, Resigned, Standing

GOES_BACK = "ShardLost"
"""The reason that a coordinator gives for its last state where another has to go on from the last checkpoint."""
TAKES_OVER = "CoordinatorDied"
"""The reason that a coordinator gives for its first state where it takes another's place."""
ANSWER_S = 15.0
"""A worker that does not give up its generation within this time is not taken over, nor a shard that is silent."""


@dataclass(frozen=True)
class Past:
    """What the log tells of the time before."""

    is_over: bool = False
    """Whether its last word was said."""
    stops_as: State | None = None
    """What it was about to become, if it was told to stop."""
    epochs: int = 0
    """How many were told since it began, or began again."""
    accuracies: list[tuple[int, float]] = field(default_factory=list)
    deaths: int = 0
    """Of coordinators."""
    went_back: int = 0
    """How often it lost a shard with all that it had since it last wrote a checkpoint."""


@dataclass
class Survivors:
    """Who lives, and how each worker's training ended."""

    workers: list[Hired] = field(default_factory=list)
    shards: dict[int, Any] = field(default_factory=dict)
    """By index: those that serve."""
    standings: dict[int, Standing] = field(default_factory=dict)
    """Theirs."""
    endings: list[Ended] = field(default_factory=list)
    generation: int = -1
    """The newest that any of them was in."""
    seats: int = -1
    """The highest that any of them had."""
    replaced: int = 0
    """The highest number in the name of anybody who took another's place, or was to."""


def past(run_dir: Path) -> Past:
    """Read the log."""
    events = list(JournalReader(run_dir).read())
    states = [State(event.data["state"]) for event in events if event.type == "state"]
    last = states[-1] if states else State.STARTING
    stops = {State.CANCELLING: State.CANCELLED, State.PAUSING: State.PAUSED}
    begin = max((i for i, event in enumerate(events) if event.type == "actors"), default=0)  # since all began anew
    epochs = max((e.data["epoch"] for e in events[begin:] if e.type == "epoch"), default=0)
    told = [(e.data["epoch"], e.data["test_accuracy"]) for e in events[begin:] if e.type == "evaluation"]
    deaths = sum(event.type == "state" and event.data["reason"] == TAKES_OVER for event in events)
    went_back = 0
    for event in events:
        went_back += event.type == "state" and event.data["reason"] == GOES_BACK
        went_back *= event.type != "checkpoint"
    is_over = last.is_terminal or last in (State.PAUSED, State.QUEUED)
    return Past(is_over, stops.get(last), epochs, told, deaths, went_back)


async def survivors(job_id: str, term: int) -> Survivors:
    """Find them by name, and have the workers end their generation for the coordinator that comes after `term` dead
    ones. Who is of no use to it is ended."""
    found, serving = Survivors(), []
    named = {entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)}
    for name in sorted(named):
        kind, _, rest = name.removeprefix(f"{job_id}/").partition("/")
        if not name.startswith(f"{job_id}/") or kind.startswith("coordinator"):
            continue
        number, _, age = rest.partition("-") if rest else kind.partition("-")
        found.replaced = max(found.replaced, int(age or 0))
        with suppress(ValueError):
            actor = ray.get_actor(name, NAMESPACE)
            if kind == "worker":
                found.workers.append(Hired(int(number), name, actor, _reservation(name)))
            elif kind in ("shard", "copy"):  # a copy may have become the shard
                serving.append((int(number), actor))
            else:
                ray.kill(actor)
    standings = await asyncio.gather(*[_answer(actor, "standing") for _, actor in serving])
    for (index, actor), standing in zip(serving, standings, strict=True):
        if standing is None:  # a copy: what it was told last, nobody knows, and another is started
            ray.kill(actor)
        else:
            found.shards[index], found.standings[index] = actor, standing
    resigned: list[Resigned | None] = await asyncio.gather(
        *[_answer(worker.actor, "resign", term) for worker in found.workers]
    )
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


async def _answer(actor: Any, method: str, *arguments: Any) -> Any:
    """None where there is none."""
    with suppress(ray.exceptions.RayError, TimeoutError):
        async with asyncio.timeout(ANSWER_S):
            return await getattr(actor, method).options(concurrency_group=CONTROL).remote(*arguments)
    return None


def _reservation(name: str) -> Any:
    with suppress(ValueError):
        return ray.util.get_placement_group(name)
    return None
