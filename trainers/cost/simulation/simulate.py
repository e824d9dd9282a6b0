"""Simulates a spec on some number of workers: by rounds where all wait for all, else event by event."""

from typing import Any

import numpy as np

from trainers.algorithms.admm.config import STEPS as ADMM_STEPS
from trainers.algorithms.admm.config import AdmmConfig
from trainers.algorithms.diloco.config import DilocoConfig
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.collectives.buckets import BUCKET_BYTES, IN_FLIGHT
from trainers.cost.schedules.among_workers import bucket_s, buckets_of
from trainers.cost.schedules.asynchronous import Visits, hidden_share, members_of, rhythm_of
from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.shares import shard_shares
from trainers.cost.schedules.step import Step
from trainers.cost.schedules.synchronous import left_open
from trainers.cost.simulation import clients as by_events
from trainers.cost.simulation import rounds as by_rounds
from trainers.cost.simulation.simulated import BLOCKS, STEPS, WARM_UP, Simulated, Stragglers
from trainers.cost.workload import Pace, Workload
from trainers.spec import TrainSpec

MANY = 64
"""Clients of whom so few stand beside a shard that it counts for nothing, and all shards have the same visitors."""


def simulate(
    spec: TrainSpec,
    work: Workload,
    pace: Pace,
    fleet: Fleet,
    step: Step,
    seed: int = 0,
    steps: int = STEPS,
) -> Simulated:
    """A run of `steps` steps of each worker, after a tenth as many that are not counted.

    Args:
        spec: The job.
        work: Its counted workload.
        pace: Of a worker that nobody disturbs.
        fleet: One candidate.
        step: What the closed forms say of it: what nothing disturbs is taken from there.
        seed: Of the draws.
        steps: To count.
    """
    rng = np.random.default_rng(seed)
    if isinstance(spec.algorithm, DownpourConfig | MixedConfig | EasgdConfig):
        return _by_events(spec, work, pace, fleet, step, rng, steps, seed)
    rounds = rounds_of(spec, work, pace, fleet, step)
    ran = by_rounds.run(rounds, pace, _all(steps), rng)
    rates = float(step.examples[0]) / _blocks(np.cumsum(ran.seconds), len(ran.seconds))
    timeline = by_rounds.timeline_of(rounds, pace, ran.usual)
    return _simulated(
        rates,
        waiting_s=float(ran.late_s.mean()) / rounds.every,
        stragglers=_stragglers(len(ran.usual), ran.late_s, ran.late_without_one_s, timeline.seconds),
        timeline=timeline,
        steps=steps,
        seed=seed,
    )


def rounds_of(spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step) -> by_rounds.Rounds:
    """What a synchronous algorithm does between two meetings."""
    workers, virtual = int(fleet.workers[0]), int(fleet.virtual[0])
    minibatches = np.array([virtual // workers + (rank < virtual % workers) for rank in range(workers)], float)
    crowding = float(fleet.crowding[0])
    passes = float(fleet.minibatches[0]) * pace.passes_s * crowding
    config, buckets, exchanges = spec.algorithm, by_rounds.Buckets(), step.exchanges
    every, backup = 1, 0
    match config:
        case SyncConfig(form="parameter_server"):
            backup = config.backup
        case SyncConfig(reduction="fast"):
            sizes, ready, needed = buckets_of(work, config.bucket_bytes or BUCKET_BYTES)
            name, in_flight = config.all_reduce or "auto", config.in_flight or IN_FLIGHT
            seconds = np.array([float(bucket_s(fleet, name, size, in_flight)[0]) for size in sizes])
            is_open = bool(left_open(config, work, fleet, spec.workers.gpus > 0)[0])
            buckets, exchanges = by_rounds.Buckets(ready, seconds, needed if is_open else None, in_flight), ()
        case DilocoConfig():
            every = max(1, config.average_every // config.fragments)
        case ParallelSgdConfig():
            every = config.within or (STEPS if config.average_every == "round" else config.average_every)
        case AdmmConfig(form="consensus"):
            every = config.steps or ADMM_STEPS
    every = min(every, STEPS)
    return by_rounds.Rounds(
        minibatches=minibatches,
        slowness=np.full(workers, crowding),
        every=every,
        backup=backup,
        data_s=_first(step.data_s),
        update_s=_first(step.computing_s) - passes,
        messages=tuple(
            by_rounds.Message(e.name, every * _first(e.total_s), every * _first(e.seen_s)) for e in exchanges
        ),
        buckets=buckets if workers > 1 else by_rounds.Buckets(),
    )


def clients_of(spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step) -> by_events.Clients:
    """What an asynchronous algorithm's clients do, a minibatch."""
    config, rhythm = spec.algorithm, rhythm_of(spec.algorithm)
    visits = Visits(spec, work, pace, fleet, rhythm)
    members = int(members_of(config, fleet)[0]) if isinstance(config, MixedConfig) else 1
    count = int(fleet.workers[0]) // members
    inner = float(step.exchanges[0].seen_s[0]) if isinstance(config, MixedConfig) else 0.0
    crowding, service_s = float(fleet.crowding[0]), float(visits.service_s[0])
    think = step.computing_s + pace.data_s
    overlapped = np.minimum(visits.overlapped_s, think)
    missed = float(visits.missed(fleet.workers // members, think, overlapped)[1][0])
    nodes = int(fleet.nodes[0]) if visits.at_home and fleet.nodes[0] > 1 and count <= MANY else 0
    return by_events.Clients(
        slowness=np.full((count, members), crowding),
        fixed_s=float(step.computing_s[0]) - pace.passes_s * crowding + pace.data_s * crowding + inner + missed,
        fetch_s=float(visits.fetch_s[0]),
        push_s=float(visits.push_s[0]),
        own_factor=float(visits.own_s[0]) / service_s if service_s > 0 else 1.0,
        shards=_relative_shares(spec, work, int(fleet.shards[0])) if nodes > 2 else (1.0,),  # on two all stand on one
        nodes=nodes,
        beside=float(visits.beside_s[0]) / service_s if service_s > 0 else 0.0,
        hidden=hidden_share(config, work) if isinstance(config, DownpourConfig) else 0.0,
        num_fetch=rhythm.num_fetch,
        num_push=rhythm.num_push,
        max_staleness=rhythm.max_staleness,
        fetches_first=rhythm.fetches_first,
    )


def _relative_shares(spec: TrainSpec, work: Workload, shards: int) -> tuple[float, ...]:
    """Of the fullest shard's, the fullest first. Where no client stands beside a shard this one alone counts: all of
    them have the same visitors at the same moments."""
    shares = sorted(shard_shares(spec, work.variables, shards), reverse=True)
    return tuple(share / shares[0] for share in shares)


def _by_events(
    spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step,
    rng: np.random.Generator, steps: int, seed: int,
) -> Simulated:  # fmt: skip
    clients = clients_of(spec, work, pace, fleet, step)
    ran = by_events.run(clients, pace, _all(steps), rng)
    members = clients.slowness.shape[1]
    rates = spec.batch.per_worker * members / _blocks(np.sort(ran.ends_s), len(ran.ends_s))
    pushes = max(1, ran.staleness.total())
    assert ran.timeline is not None
    latest, means = np.sort(ran.passes_s, axis=2), ran.passes_s.mean(axis=2)
    late, without_one = ((latest[:, :, max(0, members - gone)] - means).ravel() for gone in (1, 2))
    return _simulated(
        rates,
        waiting_s=ran.waiting_s,
        staleness={behind: number / pushes for behind, number in sorted(ran.staleness.items())},
        stragglers=_stragglers(members, late, np.maximum(without_one, 0.0), ran.timeline.seconds / ran.timeline.steps),
        timeline=ran.timeline,
        steps=steps,
        seed=seed,
    )


def _stragglers(of: int, late_s: Floats, without_one_s: Floats, seconds: float) -> Stragglers | None:
    """of: So many workers meet. seconds: From one meeting to the next."""
    if of < 2:
        return None
    return Stragglers(
        of=of,
        mean_s=float(late_s.mean()),
        share=float(late_s.mean()) / seconds,
        without_one_s=float(without_one_s.mean()),
        quantiles_s=tuple(np.quantile(late_s, np.linspace(0, 1, 21)).tolist()),
    )


def _all(steps: int) -> int:
    """With those that are not counted."""
    return steps + int(WARM_UP * steps)


def _first(values: Floats) -> float:
    return float(np.broadcast_to(values, 1)[0])


def _blocks(ends_s: Floats, count: int) -> Floats:
    """Seconds of a step in each of twenty blocks of those that are counted; (20,), or fewer of few steps."""
    first = int(count * WARM_UP / (1 + WARM_UP))
    marks = np.unique(np.linspace(first, count, min(BLOCKS, count - first) + 1).astype(int))
    at = np.concatenate([[0.0], ends_s])[marks]
    found: Floats = np.maximum(np.diff(at), 1e-12) / np.diff(marks)
    return found


def _simulated(rates: Floats, **others: Any) -> Simulated:
    low, high = np.quantile(rates, [0.05, 0.95])
    mean = float(len(rates) / np.sum(1 / rates))  # blocks have as many examples each
    return Simulated(examples_per_s=mean, low=float(low), high=float(high), **others)
