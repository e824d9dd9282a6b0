"""A step of a spatial split: minibatch by minibatch all workers compute their rows, then one of them the rest."""

from dataclasses import replace

import numpy as np

from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.spatial.rows import Window
from trainers.cost.schedules.among_workers import canonical
from trainers.cost.schedules.copies import ADDED, COPIED, copies_of_sum
from trainers.cost.schedules.fleet import Fleet, Floats
from trainers.cost.schedules.step import Exchange, Step, slowest
from trainers.cost.schedules.synchronous import updated
from trainers.cost.workload import FLOAT_BYTES, Pace, RowWork, Workload
from trainers.spec import TrainSpec


def spatial_step(spec: TrainSpec, config: SpatialConfig, work: Workload, pace: Pace, fleet: Fleet) -> Step:
    """Paper 1, section 7.

    Of each minibatch every worker computes 1/W of the layers that are divided, and the worker whose minibatch it is the
    others, while the rest wait. Its images travel to all workers and the last maps back to it, the gradients of these
    the other way; halos travel in front of each layer, and their gradients behind all but the first. Nothing is hidden.
    In front of a layer a worker's rows are copied beside their halos, forward and, since they are not kept, backward,
    and so are their gradients behind it; where rows were timed, this was timed with them. At each exchange all wait for
    the slowest. That rows may not divide evenly is not counted.
    """
    w, v, n = fleet.workers.astype(float), fleet.virtual.astype(float), float(spec.batch.per_worker)
    one, everybody = fleet.lane(all_at_once=False, both_ways=False), fleet.lane()
    share, others = work.row_share, (w - 1) / w
    mine = _own_share(work, w)
    passes = v * pace.passes_s * (mine * fleet.crowding + 1 - share)
    meetings = 2 * (len(work.row_layers) + 1) + 1  # of a minibatch; what happens by chance between two adds up so
    late = slowest(fleet.workers) * pace.spread * pace.passes_s * mine * fleet.crowding * np.sqrt(v * meetings)
    nothing = np.zeros(len(w))

    def exchange(name: str, times: int, seconds: Floats, sent: Floats) -> Exchange:
        return Exchange(name, np.where(w > 1, v * times * seconds, 0.0), nothing, np.where(w > 1, times * sent, 0.0))

    images, maps = (n * others * elements * FLOAT_BYTES for elements in (work.image, work.maps))
    own = np.ceil(v / w)  # minibatches that are one worker's
    halos, sent = nothing, nothing
    around = 0.0 if work.rows else 3 * COPIED
    moved = sum(layer.height * layer.width for layer in work.row_layers) * n / w * around
    each = moved + (v - 1) / v * ADDED * work.parameters  # of a minibatch; gradients are added to the first one's
    summed = replace(fleet, virtual=fleet.workers)  # a gradient of each worker
    copies = np.where(w > 1, v * each / max(1, work.parameters), 0.0) + copies_of_sum(summed)
    for index, layer in enumerate(work.row_layers):
        times = 2 if index else 1  # images have no gradient
        most = n * FLOAT_BYTES * layer.width * np.array([_sent_rows(layer, int(size)) for size in w])
        halos = halos + times * everybody.seconds(np.sign(most), most)
        sent = sent + times * v * most
    return Step(
        examples=v * n,
        computing_s=passes + (pace.update_s * updated(fleet) + pace.copy_s * copies) * fleet.crowding,
        data_s=fleet.minibatches * pace.data_s * fleet.crowding,
        waiting_s=late,
        exchanges=(
            exchange("images", 1, one.seconds(1.0, images), own * images),
            exchange("halos", 1, halos, sent),
            exchange("maps", 2, one.seconds(1.0, maps), own * maps),
            canonical("gradients", summed, work.num_bytes),
        ),
    )


def _own_share(work: Workload, w: Floats) -> Floats:
    """Of the passes, what the divided layers take on one of so many workers: as timed, in between and beyond on the
    lines through these points over 1/W; or 1/W of what they take on one. Timed, all rows take longer than these layers
    in the passes, since they are copied to have their padding around them, as in a run. (C,)."""
    if len(work.rows) < 2 or 1 not in work.rows:
        return work.row_share / w
    counts = sorted(work.rows)
    x, y = np.array([1 / k for k in reversed(counts)]), np.array([work.rows[k] for k in reversed(counts)])
    y = np.maximum.accumulate(y)
    slope = (y[1] - y[0]) / (x[1] - x[0])
    beyond = np.maximum(y[0] - slope * (x[0] - 1 / w), 0.0)
    found: Floats = np.where(1 / w < x[0], beyond, np.interp(1 / w, x, y))
    return found


def _sent_rows(layer: RowWork, size: int) -> int:
    """By the worker that sends most of them."""
    window = Window(layer.kernel, layer.stride, layer.padding, layer.dilation)
    halos = window.halos(layer.height, size)
    return max(sum(len(halos[k][j]) for k in range(size)) for j in range(size))
