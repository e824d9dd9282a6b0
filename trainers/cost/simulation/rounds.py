"""Synchronous algorithms: every step waits for its workers, so a run is a sum over steps of the latest worker's time.

The workers of a step begin together and meet at its end, and exchanges are alike for all of them. So nothing is gained
by events: the times of all workers in all steps are drawn at once.
"""

from dataclasses import dataclass

import numpy as np

from trainers.cost.schedules.fleet import Floats
from trainers.cost.simulation.draws import passes
from trainers.cost.workload import Pace


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
    fixed_s: float = 0.0
    """Of a step, besides passes: data, updates, and exchanges that nothing hides."""
    buckets: tuple[tuple[float, float], ...] = ()
    """Of sums that travel during the backward pass, the last minibatch's: the share of it after which one is ready, and
    the seconds of its exchange."""


def run(rounds: Rounds, pace: Pace, steps: int, rng: np.random.Generator) -> tuple[Floats, float]:
    """The seconds of each step, (steps,), and the mean seconds of one that a worker waits for slower ones.

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
    latest = ordered[:, workers - 1 - rounds.backup]
    ends = _after_buckets(rounds, pace, latest) if rounds.buckets else latest
    waiting = float((latest - per_worker.mean(axis=1)).mean()) / rounds.every
    seconds = ends / rounds.every + rounds.fixed_s
    return np.repeat(seconds, rounds.every)[:steps], max(0.0, waiting)


def _after_buckets(rounds: Rounds, pace: Pace, latest: Floats) -> Floats:
    """When the last bucket is summed: one begins when the slowest worker has it, and the one before is through."""
    last = latest / rounds.minibatches.max()  # the backward pass is the last minibatch's
    backward = last * (pace.backward_s / pace.passes_s)
    through = np.zeros(len(latest))
    for ready, seconds in rounds.buckets:
        through = np.maximum(through, latest - backward * (1 - ready)) + seconds
    found: Floats = np.maximum(latest, through)
    return found
