"""A step of the synchronous algorithms without model parallelism: sync, parallel_sgd, admm."""

import math
from dataclasses import replace

import numpy as np

from trainers.algorithms.admm.config import STEPS, AdmmConfig
from trainers.algorithms.diloco.config import DilocoConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.collectives.buckets import BUCKET_BYTES, IN_FLIGHT
from trainers.cost.schedules.among_workers import (
    bucketed,
    canonical,
    canonical_beside,
    exchanged,
)
from trainers.cost.schedules.copies import ADDED, IN_PLACE, READ, copies_of_average, copies_of_sum
from trainers.cost.schedules.fleet import Bools, Fleet, Floats
from trainers.cost.schedules.shares import fullest_share, shipped_vectors
from trainers.cost.schedules.step import Exchange, Step, missed_s, slowest
from trainers.cost.workload import FLOAT_BYTES, Pace, Workload
from trainers.errors import SpecRejected
from trainers.optim.compress.config import CompressSpec
from trainers.spec import TrainSpec

OUTER = 2.5
"""Copies that the outer optimizer of DiLoCo makes, in operations on whole vectors, beyond what an update does."""


def synchronous(
    fleet: Fleet,
    pace: Pace,
    per_worker: int,
    exchanges: tuple[Exchange, ...],
    update_s: Floats | float,
    backup: int = 0,
    every: float = 1.0,
) -> Step:
    """A step in which all wait for the slowest.

    Args:
        fleet: The candidates.
        pace: Of a worker.
        per_worker: Examples of a minibatch.
        exchanges: Of a step.
        update_s: Of all parameters that a worker updates in it.
        backup: Workers that are not waited for.
        every: Steps from one meeting of all workers to the next; what each is late in them evens out.
    """
    minibatches = fleet.minibatches.astype(float)
    passes = minibatches * pace.passes_s * fleet.crowding
    late = slowest(fleet.workers, fleet.workers - backup)
    return Step(
        examples=np.maximum(fleet.virtual - backup, 1) * float(per_worker),  # one worker alone has no backup
        computing_s=passes + update_s * fleet.crowding,
        data_s=minibatches * pace.data_s * fleet.crowding,
        waiting_s=late * pace.spread * pace.passes_s * fleet.crowding * np.sqrt(minibatches / every),
        exchanges=exchanges,
    )


def sync_step(spec: TrainSpec, config: SyncConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Papers 1 (4.1), 3 (III.B) and 4 (4)."""
    if config.form == "parameter_server":
        return _through_shards(spec, config, work, pace, fleet)
    if spec.compress is not None:
        found = exchanged("gradients", fleet, message_bytes(spec.compress, work))
        return synchronous(fleet, pace, spec.batch.per_worker, (found,), pace.update_s * np.ones(len(fleet.workers)))
    on_gpus, backward_s = spec.workers.gpus > 0, pace.backward_s * fleet.crowding
    if config.reduction == "canonical":
        waits = on_gpus or config.noise_scale
        found = canonical_beside("gradients", fleet, work, backward_s)
        if waits:
            found = canonical("gradients", fleet, work.num_bytes)
        missed = missed_s(fleet.moving_s(found.sent_bytes), found.total_s, found.hidden_s) / fleet.crowding
        updates = missed + pace.update_s * updated(fleet) + pace.copy_s * copies_of_sum(fleet, beside=not waits)
    else:
        by_library = config.all_reduce == "library" or (on_gpus and not config.all_reduce)
        is_open = left_open(config, work, fleet, on_gpus) * fleet.crowding
        found = bucketed(
            fleet,
            work,
            config.all_reduce or "auto",
            config.bucket_bytes or BUCKET_BYTES,
            config.in_flight or IN_FLIGHT,
            backward_s,
            is_open * pace.data_s,
            is_open * pace.forward_s,
        )
        missed = missed_s(fleet.moving_s(found.sent_bytes), found.total_s, found.hidden_s) / fleet.crowding
        updates = missed + pace.update_s * (updated(fleet) if by_library else 1.0 / fleet.workers)
    return synchronous(fleet, pace, spec.batch.per_worker, (found,), updates)


def left_open(config: SyncConfig, work: Workload, fleet: Fleet, on_gpus: bool) -> Bools:
    """Whether sums are still on their way when the next forward pass begins (`reduction: fast`): by messages, of
    optimizers that have a state, on a CPU; (C,)."""
    by_messages: Bools = (fleet.nodes > 1) | (not fleet.memory_is_shared)
    return by_messages & (work.num_states > 0 and config.all_reduce != "library" and not on_gpus)


def parallel_sgd_step(spec: TrainSpec, config: ParallelSgdConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Each virtual worker updates by itself; parameters and optimizer state are averaged every H steps. Of `round`, H
    is taken to be so large that the average costs nothing."""
    every = math.inf if config.average_every == "round" else float(config.average_every)
    num_bytes = (1 + work.num_states) * work.num_bytes
    exchanges = [canonical("averages", fleet, num_bytes, every)]
    if spec.compress is not None:  # of the parameters alone
        exchanges = [exchanged("averages", fleet, message_bytes(spec.compress, work), every)]
        if work.num_states:
            exchanges.append(canonical("averages of states", fleet, work.num_states * work.num_bytes, every))
    meetings = every
    if config.group is not None and config.within is not None:
        # All groups at once, each on as few switches as it needs; the average of all stands for one of a group.
        members = np.ceil(config.group * fleet.workers / fleet.virtual).astype(np.int64)
        group = replace(fleet, workers=members, virtual=np.full(len(members), config.group))
        often = 1 / (1 / config.within - 1 / every)
        exchanges.append(canonical("averages within groups", group, num_bytes, often))
        meetings = float(config.within)
    copied = (1 + work.num_states) * copies_of_average(fleet) * pace.copy_s / every
    updates = pace.own_update_s * fleet.minibatches + copied
    return synchronous(fleet, pace, spec.batch.per_worker, tuple(exchanges), updates, every=meetings)


def diloco_step(spec: TrainSpec, config: DilocoConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Each virtual worker makes H steps by itself; then the parameters alone are averaged, and each worker updates them
    once more."""
    every = float(config.average_every)
    if config.streams:
        return _streaming(spec, config, work, pace, fleet)
    if spec.compress is not None:
        average = exchanged("averages", fleet, message_bytes(spec.compress, work), every)
    else:
        average = canonical("averages", fleet, work.num_bytes, every)
    copied = (copies_of_average(fleet, laid_down=ADDED + IN_PLACE) + OUTER) * pace.copy_s / every
    updates = pace.own_update_s * (fleet.minibatches + 1 / every) + copied
    return synchronous(fleet, pace, spec.batch.per_worker, (average,), updates, every=every)


def _streaming(spec: TrainSpec, config: DilocoConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """A fragment every H/P steps, by messages also where memory is shared. Of its sum what passes in `delay` steps is
    hidden, and of all of them no more than the steps between them take. That a worker may be late by as much without
    anybody's waiting is not counted."""
    every, num = float(config.average_every), config.fragments
    by_messages = replace(fleet, memory_is_shared=False)
    if spec.compress is not None:
        one = exchanged("averages", by_messages, message_bytes(spec.compress, work) / num)
    else:
        one = canonical("averages", by_messages, work.num_bytes / num)
    updates = pace.own_update_s * (fleet.minibatches + 1 / every)
    alone = synchronous(fleet, pace, spec.batch.per_worker, (), updates, every=every / num)
    computing = alone.computing_s + alone.data_s
    whole = one.total_s * num / every  # a step
    seen = np.maximum(np.maximum(one.total_s - config.delay * computing, 0) * num / every, whole - computing)
    seen = seen if config.delay else whole
    average = Exchange("averages", whole, whole - seen, one.sent_bytes * num / every)
    return replace(alone, exchanges=(average,))


def admm_step(spec: TrainSpec, config: AdmmConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Averages of parameters and optimizer state after each minibatch; in consensus form of x + u, every H of them."""
    every = float(config.steps or STEPS) if config.form == "consensus" else 1.0
    vectors = 1 if config.form == "consensus" else 1 + work.num_states
    average = canonical("averages", fleet, vectors * work.num_bytes, every)
    if config.form == "consensus":  # x + u, weighted; and u + x - z
        copies = copies_of_average(fleet, laid_down=ADDED, taken=ADDED + READ)
    else:  # an update writes the vectors where they are weighted, and the next one begins from their average
        copies = copies_of_average(fleet, laid_down=IN_PLACE, taken=0.0)
    # An update of the consensus form reads z and u besides.
    once = pace.own_update_s + 2 * READ * pace.copy_s if config.form == "consensus" else pace.update_s
    updates = once * fleet.minibatches + vectors * copies * pace.copy_s / every
    return synchronous(fleet, pace, spec.batch.per_worker, (average,), updates, every=every)


def message_bytes(compress: CompressSpec, work: Workload) -> float:
    """Of a vector as long as the parameters, compressed. The time that takes is not counted.

    Raises:
        SpecRejected: The shapes decide, which are not in the workload.
    """
    if compress.bytes_an_element is None:
        raise SpecRejected(
            "compress: powersgd sends by the shapes of matrices, which the cost model does not know; plan top_k, sign "
            "or int8, or leave compress out"
        )
    return compress.bytes_an_element * work.num_bytes / FLOAT_BYTES


def updated(fleet: Fleet) -> Floats:
    """The share of the parameters that a worker updates: 1/W where all see one memory, and all of them where not."""
    found: Floats = 1.0 / fleet.most if fleet.memory_is_shared else np.ones(len(fleet.workers))
    return found


def _through_shards(spec: TrainSpec, config: SyncConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """All workers fetch at once, and push at once; a shard updates when it has all pushes. The fullest shard's link
    carries what the workers send it, each worker's link all that it sends."""
    share, b = fullest_share(spec, work.variables, fleet.shards), work.num_bytes
    everybody, own = shipped_vectors(fleet.virtual, fleet.workers)
    mine, theirs = fleet.lane(both_ways=False), fleet.lane(all_at_once=False, both_ways=False)
    nothing = np.zeros(len(fleet.workers))
    travels = np.where(fleet.memory_is_shared & (fleet.nodes == 1), 0.0, b)  # else all is read where it lies
    fetch = np.maximum(mine.seconds(1.0, travels), theirs.seconds(1.0, fleet.workers * share * travels))
    push = np.maximum(mine.seconds(1.0, own * travels), theirs.seconds(1.0, everybody * share * travels))
    exchanges = (
        Exchange("fetches", fetch, nothing, nothing),
        Exchange("pushes", push, nothing, own * b),
        Exchange("shards' updates", pace.update_s * share, nothing, nothing),
    )
    return synchronous(fleet, pace, spec.batch.per_worker, exchanges, 0.0, config.backup)
