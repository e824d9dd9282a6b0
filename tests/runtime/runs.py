"""Starts runs on the session's Ray and waits for their events."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group_table

import trainers
from trainers import Event, EventLogReader, Run, TrainSpec
from trainers.runtime.node_folder import where

WITHIN_S = 200.0


def spec(**fields: Any) -> TrainSpec:
    """A small run on digits."""
    base = {"data": {"name": "digits", "limit": 203}, "model": "mlp", "batch": 7, "epochs": 2, "seed": 3}
    base |= {"optimizer": {"name": "momentum", "lr": 0.02, "weight_decay": 0.001}}
    return TrainSpec.model_validate(base | fields)


@dataclass
class Watched:
    """A run under way, and the events that were read of its log."""

    run: Run
    folder: Path
    events: list[Event] = field(default_factory=list)

    def until(self, holds: Callable[[Event], bool], within_s: float = WITHIN_S) -> Event:
        """Read events until one of them is the one."""
        reader = EventLogReader(self.folder, self.events[-1].seq if self.events else 0)
        deadline = time.monotonic() + within_s
        while True:
            for event in reader.read():
                self.events.append(event)
                if holds(event):
                    return event
            assert time.monotonic() < deadline, f"waited in vain; the last events were {self.events[-3:]}"
            time.sleep(0.01)

    def end(self, within_s: float = WITHIN_S) -> Event:
        """The terminal event."""
        return self.until(lambda event: event.is_terminal, within_s)

    def of(self, event_type: str) -> list[dict[str, Any]]:
        """The data of all events of a type."""
        return [event.data for event in self.events if event.type == event_type]


def start(job_id: str, train: TrainSpec, folder: Path) -> Watched:
    return Watched(trainers.start_run(job_id, train, folder), folder)


def finished(job_id: str, train: TrainSpec, folder: Path, within_s: float = WITHIN_S) -> Watched:
    """Run it to its end."""
    watched = start(job_id, train, folder)
    watched.end(within_s)
    return watched


def soon(holds: Callable[[], bool], within_s: float = WITHIN_S) -> None:
    """Wait until it does."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def changes(states: Iterable[str]) -> list[str]:
    """Each state once where it stands several times in a row: a long start says again and again what it waits for."""
    return [state for state, _ in groupby(states)]


def left_behind(job_id: str) -> list[str]:
    """Actors but the coordinator, placement groups and mapped files of a run."""
    actors = [a["name"] for a in ray.util.list_named_actors(all_namespaces=True)]
    groups = [g["name"] for g in placement_group_table().values() if g["state"] != "REMOVED"]
    files = [str(where(job_id))] if where(job_id).exists() else []
    return [name for name in (*actors, *groups) if name.startswith(f"{job_id}/")] + files


def gone_soon(job_id: str, pids: list[int]) -> None:
    """Nothing is left of a run that has ended."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        left = left_behind(job_id) + [pid for pid in pids if Path(f"/proc/{pid}").exists()]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
