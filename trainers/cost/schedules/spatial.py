"""A step of a spatial split: minibatch by minibatch all workers compute their rows, then one of them the rest."""

from dataclasses import replace

import numpy as np

from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.spatial.rows import Window
from trainers.cost.schedules.among_workers import canonical
from trainers.cost.schedules.copies import ADDED, COPIED, WRITTEN, copies_of_sum
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
    In front of a layer a worker's rows are copied together with their halos, and their gradients added up behind it.
    That rows may not divide evenly is not counted.
    """
    w, v, n = fleet.workers.astype(float), fleet.virtual.astype(float), float(spec.batch.per_worker)
    one, everybody = fleet.lane(all_at_once=False, both_ways=False), fleet.lane()
    share, others = work.row_share, (w - 1) / w
    passes = v * pace.passes_s * (share / w * fleet.crowding + 1 - share)
    late = slowest(fleet.workers) * pace.spread * pace.passes_s * share / w * fleet.crowding * np.sqrt(v)
    nothing = np.zeros(len(w))

    def exchange(name: str, times: int, seconds: Floats, sent: Floats) -> Exchange:
        return Exchange(name, np.where(w > 1, v * times * seconds, 0.0), nothing, np.where(w > 1, times * sent, 0.0))

    images, maps = (n * others * elements * FLOAT_BYTES for elements in (work.image, work.maps))
    own = np.ceil(v / w)  # minibatches that are one worker's
    halos, sent = nothing, nothing
    moved = sum(layer.height * layer.width for layer in work.row_layers) * n / w * (2 * WRITTEN + COPIED + ADDED)
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


def _sent_rows(layer: RowWork, size: int) -> int:
    """By the worker that sends most of them."""
    window = Window(layer.kernel, layer.stride, layer.padding, layer.dilation)
    halos = window.halos(layer.height, size)
    return max(sum(len(halos[k][j]) for k in range(size)) for j in range(size))
