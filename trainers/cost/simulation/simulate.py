"""Simulates a spec on some number of workers: by rounds where all wait for all, else event by event."""

import numpy as np

from trainers.algorithms.admm.config import STEPS as ADMM_STEPS
from trainers.algorithms.admm.config import AdmmConfig
from trainers.algorithms.diloco.config import DilocoConfig
from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.schedules.among_workers import BUCKET_BYTES, IN_FLIGHT, bucket_s, buckets_of
from trainers.cost.schedules.asynchronous import Visits, hidden_share, members_of, rhythm_of
from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.step import Step
from trainers.cost.simulation import clients as by_events
from trainers.cost.simulation import rounds as by_rounds
from trainers.cost.simulation.simulated import BLOCKS, STEPS, WARM_UP, Simulated
from trainers.cost.workload import Pace, Workload
from trainers.spec import TrainSpec


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
    all_steps = steps + int(WARM_UP * steps)
    if isinstance(spec.algorithm, DownpourConfig | MixedConfig | EasgdConfig):
        return _by_events(spec, work, pace, fleet, step, rng, all_steps, seed)
    rounds = rounds_of(spec, work, pace, fleet, step)
    seconds, waiting = by_rounds.run(rounds, pace, all_steps, rng)
    rates = float(step.examples[0]) / _blocks(np.cumsum(seconds), len(seconds))
    return _simulated(rates, waiting, {}, steps, seed)


def rounds_of(spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step) -> by_rounds.Rounds:
    """What a synchronous algorithm does between two meetings."""
    workers, virtual = int(fleet.workers[0]), int(fleet.virtual[0])
    minibatches = np.array([virtual // workers + (rank < virtual % workers) for rank in range(workers)], float)
    crowding = float(fleet.crowding[0])
    passes = float(fleet.minibatches[0]) * pace.passes_s * crowding
    config, buckets = spec.algorithm, tuple[tuple[float, float], ...]()
    seen = sum(float(np.broadcast_to(exchange.seen_s, 1)[0]) for exchange in step.exchanges)
    every, backup = 1, 0
    match config:
        case SyncConfig(form="parameter_server"):
            backup = config.backup
        case SyncConfig(reduction="fast"):
            sizes, ready = buckets_of(work, config.bucket_bytes or BUCKET_BYTES)
            name, in_flight = config.all_reduce or "auto", config.in_flight or IN_FLIGHT
            seconds = [float(bucket_s(fleet, name, size, in_flight)[0]) for size in sizes]
            buckets, seen = tuple(zip(ready.tolist(), seconds, strict=True)), 0.0
        case DilocoConfig():
            every = max(1, config.average_every // config.fragments)
        case ParallelSgdConfig():
            every = config.within or (STEPS if config.average_every == "round" else config.average_every)
        case AdmmConfig(form="consensus"):
            every = config.steps or ADMM_STEPS
    return by_rounds.Rounds(
        minibatches=minibatches,
        slowness=np.full(workers, crowding),
        every=min(every, STEPS),
        backup=backup,
        fixed_s=float(step.computing_s[0]) - passes + float(np.broadcast_to(step.data_s, 1)[0]) + seen,
        buckets=buckets if workers > 1 else (),
    )


def clients_of(spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step) -> by_events.Clients:
    """What an asynchronous algorithm's clients do, a minibatch."""
    config, rhythm = spec.algorithm, rhythm_of(spec.algorithm)
    visits = Visits(spec, work, pace, fleet, rhythm)
    members = int(members_of(config, fleet)[0]) if isinstance(config, MixedConfig) else 1
    count = int(fleet.workers[0]) // members
    near, alone = int(visits.near(np.array([count]))[0]), fleet.shards[0] == 1
    elsewhere = 1.0 if alone else 1 - near / count
    local_s = float(visits.alone_s) - pace.passes_s
    inner = float(step.exchanges[0].seen_s[0]) if isinstance(config, MixedConfig) else 0.0
    crowding = float(fleet.crowding[0])
    return by_events.Clients(
        slowness=np.full((count, members), crowding),
        fixed_s=(local_s + pace.data_s) * crowding + inner,
        fetch_s=float(visits.fetch_s[0]) * elsewhere,
        push_s=float(visits.push_s[0]) * elsewhere,
        own_factor=float((visits.own_s / visits.service_s)[0]) if visits.service_s[0] > 0 else 1.0,
        free=near if alone else 0,
        hidden=hidden_share(config, work) if isinstance(config, DownpourConfig) else 0.0,
        num_fetch=rhythm.num_fetch,
        num_push=rhythm.num_push,
        max_staleness=rhythm.max_staleness,
    )


def _by_events(
    spec: TrainSpec, work: Workload, pace: Pace, fleet: Fleet, step: Step,
    rng: np.random.Generator, steps: int, seed: int,
) -> Simulated:  # fmt: skip
    clients = clients_of(spec, work, pace, fleet, step)
    ran = by_events.run(clients, pace, steps, rng)
    examples = spec.batch.per_worker * clients.slowness.shape[1]
    rates = examples / _blocks(np.sort(ran.ends_s), len(ran.ends_s))
    pushes = max(1, ran.staleness.total())
    staleness = {behind: number / pushes for behind, number in sorted(ran.staleness.items())}
    return _simulated(rates, ran.waiting_s, staleness, steps, seed)


def _blocks(ends_s: Floats, count: int) -> Floats:
    """Seconds of a step in each of twenty blocks of those that are counted; (20,), or fewer of few steps."""
    first = int(count * WARM_UP / (1 + WARM_UP))
    marks = np.unique(np.linspace(first, count, min(BLOCKS, count - first) + 1).astype(int))
    at = np.concatenate([[0.0], ends_s])[marks]
    found: Floats = np.maximum(np.diff(at), 1e-12) / np.diff(marks)
    return found


def _simulated(rates: Floats, waiting_s: float, staleness: dict[int, float], steps: int, seed: int) -> Simulated:
    low, high = np.quantile(rates, [0.05, 0.95])
    return Simulated(
        examples_per_s=float(len(rates) / np.sum(1 / rates)),  # blocks have as many examples each
        low=float(low),
        high=float(high),
        waiting_s=waiting_s,
        staleness=staleness,
        steps=steps,
        seed=seed,
    )
