"""Synchronous algorithms: every step waits for its workers, so a run is a sum over steps of the latest worker's time.

The workers of a step begin together and meet at its end, and exchanges are alike for all of them. So nothing is gained
by events: the times of all workers in all steps are drawn at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trainers.cost.schedules.among_workers import through_lanes
from trainers.cost.schedules.fleet import Floats
from trainers.cost.simulation.draws import passes
from trainers.cost.simulation.timeline import WAITS, Timeline, chosen, track
from trainers.cost.workload import Pace

FETCHES, UPDATES, OURS = "fetches", "shards' updates", "updates"


@dataclass(frozen=True)
class Message:
    """An exchange of all workers, between two meetings."""

    name: str
    total_s: float
    seen_s: float
    """Of that, what nothing hides."""


@dataclass(frozen=True)
class Buckets:
    """Sums that travel beside the passes; (n,) each, in the order in which the backward pass completes them."""

    ready: Floats = field(default_factory=lambda: np.zeros(0))
    """The share of the last minibatch's backward pass after which each is ready."""
    seconds: Floats = field(default_factory=lambda: np.zeros(0))
    """Of its exchange alone."""
    needed: Floats | None = None
    """The share of the next forward pass after which it is waited for; None: a step ends when all are through."""
    lanes: int = 1
    """How many are under way at once."""


@dataclass(frozen=True)
class Rounds:
    """What a synchronous algorithm does between two meetings of all workers."""

    minibatches: Floats
    """Of each worker in a step, (K,)."""
    slowness: Floats
    """(K,)."""
    every: int = 1
    """Steps from one meeting to the next."""
    backup: int = 0
    """Workers that are not waited for."""
    data_s: float = 0.0
    """Of a step."""
    update_s: float = 0.0
    """Likewise, by the workers."""
    messages: tuple[Message, ...] = ()
    """Between two meetings."""
    buckets: Buckets = field(default_factory=Buckets)
    """These are not among the messages."""

    @property
    def fixed_s(self) -> float:
        """Between two meetings, besides passes: data, updates, and exchanges that nothing hides."""
        return (self.data_s + self.update_s) * self.every + sum(message.seen_s for message in self.messages)


@dataclass
class Ran:
    """What came of it; between two meetings unless it says otherwise."""

    seconds: Floats
    """Of each step, (steps,)."""
    late_s: Floats
    """By which the last that is waited for is later than the mean, (meetings,)."""
    late_without_one_s: Floats
    """Likewise with the slowest left out."""
    usual: Floats
    """Each worker's passes before a meeting of median length, (K,)."""


def run(rounds: Rounds, pace: Pace, steps: int, rng: np.random.Generator) -> Ran:
    """So many steps of each worker.

    Where workers meet every H steps, a step has 1/H of the time between two meetings.
    """
    meetings, workers = max(1, steps // rounds.every), len(rounds.slowness)
    per_worker = np.zeros((meetings, workers))
    for index in range(int(rounds.minibatches.max())):
        per_worker += passes(pace, (meetings, workers), rounds.slowness, rng) * (rounds.minibatches > index)
    if rounds.every > 1:  # the sum of H draws, each with the spread of one
        mean = pace.passes_s * rounds.slowness * rounds.minibatches
        per_worker = mean * rounds.every + (per_worker - mean) * np.sqrt(rounds.every)
    ordered = np.sort(per_worker, axis=1)
    last = workers - 1 - rounds.backup
    latest, means = ordered[:, last], per_worker.mean(axis=1)
    ends = _after_buckets(rounds, pace, latest)
    median = int(np.argsort(latest)[meetings // 2])
    return Ran(
        seconds=np.repeat((ends + rounds.fixed_s) / rounds.every, rounds.every)[:steps],
        late_s=np.maximum(latest - means, 0.0),
        late_without_one_s=np.maximum(ordered[:, max(0, last - 1)] - means, 0.0),
        usual=per_worker[median],
    )


def timeline_of(rounds: Rounds, pace: Pace, usual: Floats) -> Timeline:
    """From one meeting to the next. usual: Each worker's passes, (K,)."""
    before = sum(message.seen_s for message in rounds.messages if message.name == FETCHES)
    begins = before + rounds.data_s * rounds.every
    ordered = np.sort(usual)
    latest = float(ordered[len(usual) - 1 - rounds.backup])
    ends = begins + float(_after_buckets(rounds, pace, np.array([latest]))[0])
    on_links, at_shards = list(_fetches(rounds)), list[tuple[str, float, float]]()
    at = ends
    for message in rounds.messages:
        if message.name == FETCHES:
            continue
        at += message.seen_s
        span = (message.name, max(0.0, at - message.total_s), at)
        (at_shards if message.name == UPDATES else on_links).append(span)
    seconds = at + rounds.update_s * rounds.every
    on_links += _gradients(rounds, pace, begins, latest, seconds)

    def spans(own: float) -> Iterator[tuple[str, float, float]]:
        yield FETCHES, 0.0, before
        yield "data", before, begins
        yield ("computing" if own <= latest else "not waited for"), begins, min(begins + own, ends)
        yield WAITS, begins + own, ends
        yield "exchanges", ends, at
        yield OURS, at, seconds

    order = [int(index) for index in np.argsort(usual, kind="stable")]
    shown = sorted(order[index] for index in chosen(len(order)))
    rows = [track(f"worker {k}", spans(float(usual[k])), 0.0, seconds) for k in shown]
    rows += [track("links", sorted(on_links, key=lambda span: span[1]), 0.0, seconds)] if on_links else []
    rows += [track("the fullest shard", at_shards, 0.0, seconds)] if at_shards else []
    return Timeline(seconds=seconds, steps=rounds.every, tracks=tuple(rows), left_out=len(order) - len(shown))


def _fetches(rounds: Rounds) -> Iterator[tuple[str, float, float]]:
    """What travels before the passes."""
    for message in rounds.messages:
        if message.name == FETCHES:
            yield FETCHES, 0.0, message.total_s


def _gradients(
    rounds: Rounds, pace: Pace, begins: float, latest: float, seconds: float
) -> Iterator[tuple[str, float, float]]:
    """When any of the buckets travels. Steps are alike: what is under way when one ends is so when one begins."""
    starts, ends = (each[:, 0] for each in _bucket_spans(rounds, pace, np.array([latest])))
    on_its_way = sorted((begins + start, begins + end) for start, end in zip(starts, ends, strict=True))
    on_its_way = sorted([(0.0, end - seconds) for _, end in on_its_way if end > seconds] + on_its_way)
    through = 0.0
    for start, end in on_its_way:
        if end > through:
            yield "gradients", max(start, through), end
            through = end


def _after_buckets(rounds: Rounds, pace: Pace, latest: Floats) -> Floats:
    """When a step ends: with the last sum, or later than the passes by what the next forward pass waits for sums."""
    buckets = rounds.buckets
    if not len(buckets.seconds):
        return latest
    _, through = _bucket_spans(rounds, pace, latest)
    due = latest
    if buckets.needed is not None:
        forward = _of_last(rounds, latest) * (pace.forward_s / pace.passes_s)
        due = latest + rounds.data_s + buckets.needed[:, None] * forward
    found: Floats = latest + np.maximum(0.0, np.max(through - due, axis=0))
    return found


def _bucket_spans(rounds: Rounds, pace: Pace, latest: Floats) -> tuple[Floats, Floats]:
    """When each begins, once the slowest worker has it, and ends; (n, meetings) each."""
    buckets, backward = rounds.buckets, _of_last(rounds, latest) * (pace.backward_s / pace.passes_s)
    ready = latest - backward * (1 - buckets.ready[:, None])
    return through_lanes(ready, np.tile(buckets.seconds[:, None], len(latest)), buckets.lanes)


def _of_last(rounds: Rounds, latest: Floats) -> Floats:
    """The passes of the slowest worker's last minibatch."""
    found: Floats = latest / rounds.minibatches.max()
    return found
