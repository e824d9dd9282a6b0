"""Synchronous algorithms: every step waits for its workers, so a run is a sum over steps of the latest worker's time.

The workers of a step begin together and meet at its end, and exchanges are alike for all of them. So nothing is gained
by events: the times of all workers in all steps are drawn at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

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
    buckets: tuple[tuple[float, float], ...] = ()
    """Of sums that travel during the backward pass, the last minibatch's: the share of it after which one is ready, and
    the seconds of its exchange. These are not among the messages."""

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
    ends = _after_buckets(rounds, pace, latest) if rounds.buckets else latest
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
    meet = begins + latest
    ends = begins + float(_after_buckets(rounds, pace, np.array([latest]))[0]) if rounds.buckets else meet
    on_links, at_shards = list(_on_links(rounds, pace, begins, latest)), list[tuple[str, float, float]]()
    at = ends
    for message in rounds.messages:
        if message.name == FETCHES:
            continue
        at += message.seen_s
        span = (message.name, max(0.0, at - message.total_s), at)
        (at_shards if message.name == UPDATES else on_links).append(span)
    seconds = at + rounds.update_s * rounds.every

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


def _on_links(rounds: Rounds, pace: Pace, begins: float, latest: float) -> Iterator[tuple[str, float, float]]:
    """What travels before the workers meet: what they fetch, and sums of what the backward pass has completed."""
    for message in rounds.messages:
        if message.name == FETCHES:
            yield FETCHES, 0.0, message.total_s
    for begin, end in _bucket_spans(rounds, pace, np.array([latest])):
        yield "gradients", begins + float(begin[0]), begins + float(end[0])


def _after_buckets(rounds: Rounds, pace: Pace, latest: Floats) -> Floats:
    """When the last bucket is summed."""
    through = [end for _, end in _bucket_spans(rounds, pace, latest)][-1]
    found: Floats = np.maximum(latest, through)
    return found


def _bucket_spans(rounds: Rounds, pace: Pace, latest: Floats) -> Iterator[tuple[Floats, Floats]]:
    """One begins when the slowest worker has it, and the one before is through; (meetings,) each."""
    backward = latest / rounds.minibatches.max() * (pace.backward_s / pace.passes_s)  # the last minibatch's
    through = np.zeros(len(latest))
    for ready, seconds in rounds.buckets:
        begin = np.maximum(through, latest - backward * (1 - ready))
        through = begin + seconds
        yield begin, through
