"""A step of hybrid parallelism: turns through the divided layers, then the sum of the others' gradients (paper 1)."""

from dataclasses import replace

import numpy as np

from trainers.algorithms.hybrid.config import HybridConfig
from trainers.cost.schedules.among_workers import canonical
from trainers.cost.schedules.copies import ADDED, COPIED
from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.step import Exchange, Step
from trainers.cost.schedules.synchronous import synchronous
from trainers.cost.workload import FLOAT_BYTES, Pace, Workload
from trainers.spec import TrainSpec


def hybrid_step(spec: TrainSpec, config: HybridConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Paper 1, sections 4 and 4.1.

    Of V turns the activities of the next one and the gradients of the last one travel while this one computes. The
    exchange between the layers of the head is waited for; it meets the hidden ones on the same link, and both get half
    of it. A turn lasts as long as computing and that, or as the link needs for all of it, whichever is longer.

    Of layers that are restricted to g blocks, the passes are taken to last as much shorter as they have fewer weights,
    and only workers that share a block exchange their units: h (W - g)/g of them an example, each way, for W > g
    workers. With projections of rank r, all gather the g r numbers of these.
    """
    if config.columns is not None:
        return _columns_step(spec, config, work, pace, fleet)
    w, n = fleet.workers.astype(float), float(spec.batch.per_worker)
    turns = np.ones(len(w)) if config.scheme == "a" else fleet.virtual.astype(float)
    examples = fleet.virtual * n / turns
    senders = _senders(config, fleet)
    lane = fleet.lane(all_at_once=config.scheme != "b", both_ways=config.scheme != "b")
    first = work.head[0].inputs
    hidden = lane.seconds(1.0, (w - 1) * examples / senders * first * FLOAT_BYTES)
    between = fleet.lane()
    exchanged, times = _in_head(config, work, w)
    waited = between.seconds(times, examples * exchanged * FLOAT_BYTES)
    saved = _saved(config, work)
    computing = pace.passes_s * (work.head_share - saved) * examples / n / w * fleet.crowding
    meets = np.where(turns > 1, np.minimum(waited, hidden), 0.0)
    turn = computing + waited + meets
    turn = np.where(turns > 1, np.maximum(turn, hidden + waited), turn)
    seen = 2 * hidden + turns * (turn - computing)
    everything = turns * (2 * hidden + waited)
    alone = w == 1
    activities = Exchange(
        "activities",
        np.where(alone, 0.0, np.maximum(everything, seen)),
        np.where(alone, 0.0, np.maximum(everything - seen, 0.0)),
        turns * examples * ((w - 1) / w * first * 2 + exchanged) * FLOAT_BYTES,
    )
    backbone = canonical("gradients", fleet, work.num_bytes - FLOAT_BYTES * work.head_parameters)
    fewer = replace(pace, forward_s=pace.forward_s * (1 - saved), backward_s=pace.backward_s * (1 - saved))
    # A worker's activities are put together, all workers' arrive, and the gradients of all go back and are added up.
    own, whole = fleet.virtual * n / w, fleet.virtual * n
    copies = (own * (COPIED + ADDED * (w - 1)) + 3 * COPIED * whole) * first / max(1, work.parameters)
    updates = _update_s(config, work, pace, w, turns) + np.where(alone, 0.0, copies * pace.copy_s)
    return synchronous(fleet, fewer, spec.batch.per_worker, (activities, backbone), updates)


def _columns_step(spec: TrainSpec, config: HybridConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Krizhevsky et al. 2012, section 3.5: every worker computes its part of all layers, for the examples of all.

    It waits for the others' images, but for those of all turns after the first, which travel while one computes; and
    for activities and their gradients wherever columns meet and in the head.
    """
    w, n = fleet.workers.astype(float), float(spec.batch.per_worker)
    turns = np.ones(len(w)) if config.scheme == "a" else fleet.virtual.astype(float)
    examples, lane = fleet.virtual * n / turns, fleet.lane(all_at_once=config.scheme != "b")
    of_images = lane.seconds(1.0, (w - 1) * examples / _senders(config, fleet) * work.pixels * FLOAT_BYTES)
    in_head, times = _in_head(config, work, w)
    exchanged = (w - 1) / w * 2 * work.columns_met + in_head
    waited = fleet.lane().seconds(times + 2 * work.columns_meet, examples * exchanged * FLOAT_BYTES)
    fewer = 1 - _saved(config, work)
    hidden = (turns - 1) * np.minimum(of_images, fewer * pace.passes_s * examples / n / w * fleet.crowding)
    alone = w == 1
    activities = Exchange(
        "activities",
        np.where(alone, 0.0, turns * (of_images + waited)),
        np.where(alone, 0.0, hidden),
        turns * examples * ((w - 1) / w * work.pixels + exchanged) * FLOAT_BYTES,
    )
    pace = replace(pace, forward_s=pace.forward_s * fewer, backward_s=pace.backward_s * fewer)
    return synchronous(fleet, pace, spec.batch.per_worker, (activities,), pace.update_s / w)


def _in_head(config: HybridConfig, work: Workload, w: Floats) -> tuple[Floats, Floats]:
    """Activities of one example that a worker sends between the layers of the head, and how many times it does."""
    g, r, shares = config.blocks, config.rank, np.maximum(w - config.blocks, 0.0)
    within = 2 * sum(layer.inputs for layer in work.between) * shares / g / w if g > 1 else np.zeros(len(w))
    projected = 2 * len(work.between) * g * r * (w - 1) / w
    times = work.head_exchanges + 2 * len(work.between) * ((within > 0) * 1.0 + (projected > 0))
    return (w - 1) / w * work.head_exchanged + within + projected, times


def _saved(config: HybridConfig, work: Workload) -> float:
    """The share of the FLOPs that restricted layers leave out."""
    return 2 * 3 * work.left_out(config.blocks, config.rank) / max(1, work.forward_flops + work.backward_flops)


def _senders(config: HybridConfig, fleet: Fleet) -> Floats:
    """Workers that have examples in a turn."""
    w = fleet.workers.astype(float)
    if config.scheme == "b":
        return np.ones(len(w))
    if config.scheme == "bc":
        return np.clip(config.group_size * w / fleet.virtual, 1.0, w)
    return w


def _update_s(config: HybridConfig, work: Workload, pace: Pace, w: Floats, turns: Floats) -> Floats:
    """Each worker updates its slice of the head, `per_turn` in every turn, and 1/W of the other parameters."""
    head = work.head_parameters / max(1, work.parameters)
    divided = head - work.left_out(config.blocks, config.rank) / max(1, work.parameters)
    times = turns if config.fc_batch == "per_turn" else np.ones(len(w))
    return pace.update_s * (1 - head + divided * times) / w
