"""What a spec asks for that does nothing, or that is known to end badly: said before the run, which goes on."""

import math

from trainers.algorithms.diloco.config import DilocoConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.data.names import RECORDS
from trainers.data.order import Order
from trainers.optim.optimizers.momentum.config import MomentumSpec
from trainers.optim.optimizers.nesterov.config import NesterovSpec
from trainers.optim.schedules.cycles import RestartsSchedule
from trainers.optim.schedules.drops import StepSchedule
from trainers.spec.compression import averaged_whole
from trainers.spec.memory import gradient_bytes, sum_bytes
from trainers.spec.train import MOST_EPOCHS, TrainSpec

MOST_OF_THE_FIRST = 0.05
"""Share of the first update in the average at the end of a run, from which on it is told."""
HEAVY_MOMENTUM = 0.9
"""From here on, momentum on top of asynchrony is known to cost accuracy."""

FAR = 8
"""Times the base batch, above which the scaled rate is not to be taken at once: the large minibatches of paper 4."""


def advice(spec: TrainSpec, num_examples: int) -> list[str]:
    """Sentences, each with the field and what to do. num_examples: In the training set."""
    order = Order(num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed)
    division = [*_division(spec, order), *_order(spec), *_images(spec), *_mixing(spec), *_blocks(spec), *_columns(spec)]
    found = [
        *_length(spec, num_examples),
        *_schedule(spec, num_examples),
        *division,
        *_wire(spec),
        *_compressed(spec),
        *_average(spec, num_examples),
    ]
    return [*found, *_asynchrony(spec), *_scaling(spec), *_warmup(spec)]


def _length(spec: TrainSpec, num_examples: int) -> list[str]:
    """Limits that the run does not come to."""
    found, unlimited = [], {"max_steps": None, "max_examples": None}
    whole = spec.model_copy(update=unlimited).extent(num_examples).examples
    for name in unlimited:
        limit = getattr(spec, name)
        longer = spec.model_copy(update=unlimited | {name: limit, "epochs": MOST_EPOCHS})
        if limit is not None and longer.extent(num_examples).examples > whole:
            found.append(f"{name}: the run ends after {spec.epochs} epochs, before it comes to {limit}; raise epochs")
    return found


def _schedule(spec: TrainSpec, num_examples: int) -> list[str]:
    """One whose first turn the run does not come to."""
    schedule, epochs = spec.schedule, spec.extent(num_examples).examples / num_examples
    turns = {"epochs": min(schedule.epochs, default=0.0)} if isinstance(schedule, StepSchedule) else {}
    turns |= {"first": schedule.first} if isinstance(schedule, RestartsSchedule) else {}
    return [
        f"schedule.{field}: the run ends after {epochs:.3g} epochs, and the first turn would come after {turn:g}; give "
        "less, or raise epochs"
        for field, turn in turns.items()
        if turn >= epochs
    ]


def _division(spec: TrainSpec, order: Order) -> list[str]:
    """Examples, minibatches and workers that do not go together."""
    found, traits, workers = [], spec.algorithm.traits, spec.workers
    if traits.is_synchronous and spec.global_batch > order.num_examples:
        found.append(
            f"batch: a step has {spec.global_batch} examples, and the training set {order.num_examples}: each step "
            "trains all of them, at the learning rate of the larger batch; use fewer workers, or a smaller batch"
        )
    elif workers.count > order.minibatches:
        found.append(
            f"workers.count: {workers.count} workers share {order.minibatches} minibatches an epoch, so some of them "
            "have nothing to do; use fewer workers, or a smaller batch"
        )
    if not traits.is_synchronous and workers.virtual not in (0, workers.count):
        found.append(
            f"workers.virtual: {spec.algorithm.name} has no virtual workers, so {workers.virtual} does nothing; "
            "leave it out"
        )
    if traits.is_synchronous and not spec.scales_batch and workers.max > workers.num_virtual:
        found.append(
            f"workers.max: the run has {workers.num_virtual} virtual workers, and so never more workers; give "
            f"workers.virtual: {workers.max}, with which the batch of a step is larger, or a smaller max"
        )
    if isinstance(spec.algorithm, ParallelSgdConfig) and spec.algorithm.local_after >= spec.epochs:
        found.append(
            f"algorithm.local_after: the run has {spec.epochs} epochs, so no step is local; use fewer, or algorithm: "
            "sync, which exchanges gradients alone"
        )
    rounds = -(-order.minibatches // workers.count)
    if traits.outer is not None and traits.num_push > rounds:
        field = "tau" if isinstance(spec.algorithm, EasgdConfig) else "steps"
        found.append(
            f"algorithm.{field}: an epoch has {order.minibatches} minibatches for {workers.count} workers, and its end "
            f"ends a round, so some of them have nothing to do; give {rounds} or less"
        )
    if isinstance(spec.algorithm, DilocoConfig) and spec.algorithm.average_every > order.steps:
        found.append(
            f"algorithm.average_every: an epoch has {order.steps} steps, and its end ends a round, so rounds are not "
            f"longer; give {order.steps} or less"
        )
    if isinstance(spec.algorithm, DilocoConfig) and spec.algorithm.delay and not spec.algorithm.own_share:
        every, delay = spec.algorithm.average_every, spec.algorithm.delay
        found.append(
            f"algorithm.alpha: at 0 what workers change while a sum travels, in {delay} of {every} steps, is thrown "
            "away when it comes; leave it out for 0.5"
        )
    return found


def _blocks(spec: TrainSpec) -> list[str]:
    """Blocks of units that workers share out unequally."""
    config, count = spec.algorithm, spec.workers.count
    if not isinstance(config, HybridConfig) or config.connect is None:
        return []
    more, fewer = max(count, config.blocks), min(count, config.blocks)
    if more % fewer == 0:
        return []
    shares = "some have more of them than others" if count == fewer else "more of them share some than others"
    return [
        f"algorithm.connect.blocks: {count} workers share {config.blocks} blocks, so {shares}, and the others wait; "
        f"give a multiple of {count}"
    ]


def _columns(spec: TrainSpec) -> list[str]:
    """Columns that workers share out unequally."""
    config, count = spec.algorithm, spec.workers.count
    if not isinstance(config, HybridConfig) or config.columns is None or config.columns % count == 0:
        return []
    return [
        f"workers.count: {count} workers share {config.columns} columns, so some have one more, and the others wait; "
        f"give a divisor of {config.columns}"
    ]


def _order(spec: TrainSpec) -> list[str]:
    """Classes one after the other."""
    if spec.data.shuffle or spec.data.name not in ("image_folder", "imagenet"):
        return []
    return [
        "data.shuffle: folders have one class after the other, so whole minibatches are of one class, from which a "
        "model learns badly; leave it out"
    ]


def _images(spec: TrainSpec) -> list[str]:
    """Changes of images, of data that have none."""
    data = spec.data
    vain = data.seen_by if data.name in RECORDS else ()
    return [f"data.{name}: {data.name} has no images, so this does nothing; leave it out" for name in vain]


def _mixing(spec: TrainSpec) -> list[str]:
    """Minibatches in which no image has another to be mixed with."""
    mixed = spec.data.mixed_by
    if not mixed or spec.batch.per_worker > 1:
        return []
    return [
        f"data.{mixed[0]}: images of one virtual worker's minibatch are mixed with each other, and each has only one; "
        "raise batch.per_worker, or leave it out"
    ]


def _wire(spec: TrainSpec) -> list[str]:
    """Fewer bits, where no byte is saved for them."""
    if not spec.algorithm.traits.is_synchronous or spec.wire == "float32":
        return []
    if gradient_bytes(spec, spec.wire) < gradient_bytes(spec, "float32"):
        return []
    return [
        "wire: each worker sends sums of several virtual workers' gradients, which are float32, so bfloat16 rounds "
        "these and saves no byte; leave it out, or take as many workers as virtual ones"
    ]


def _compressed(spec: TrainSpec) -> list[str]:
    """More bytes than without it: every worker gets the messages of all virtual workers. Or little less, where most of
    what travels is not compressed."""
    if spec.compress is None or not spec.algorithm.traits.is_synchronous or spec.workers.count == 1:
        return []
    found, plain = sum_bytes(spec) or (0.0, math.inf)
    if found >= plain:
        return [
            f"compress: every worker gets what all {spec.workers.num_virtual} virtual workers send, {found:.3g} bytes "
            f"an element in all, and without it {plain:.3g}; leave it out, send less, or take fewer workers"
        ]
    if whole := averaged_whole(spec):
        return [
            f"compress: {whole} averaged with the parameters and not compressed, so most of the bytes still travel; "
            "take optimizer: sgd, or diloco, where each worker keeps its optimizer's state"
        ]
    return []


def _asynchrony(spec: TrainSpec) -> list[str]:
    """Gradients that come late act like momentum (Mitliagkas et al. 2016)."""
    traits, optimizer = spec.algorithm.traits, spec.optimizer
    late = not traits.is_synchronous and not traits.num_backup and traits.outer is None
    if not late or not isinstance(optimizer, MomentumSpec | NesterovSpec):
        return []
    if spec.workers.count == 1 or optimizer.momentum < HEAVY_MOMENTUM:
        return []
    return [
        f"optimizer.momentum: {optimizer.momentum:g} adds to what asynchrony does by itself (late gradients act like "
        "momentum), and the accuracy suffers; try half of optimizer.lr, a momentum of 0.5 or less, or with downpour "
        "server_rule: staleness_damped"
    ]


def _average(spec: TrainSpec, num_examples: int) -> list[str]:
    """An average that is still near where it began when the run ends."""
    if spec.ema is None:
        return []
    extent, batch = spec.extent(num_examples), spec.update_batch
    rest = extent.examples - extent.epochs * num_examples
    updates = extent.epochs * math.ceil(num_examples / batch) + math.ceil(rest / batch)  # an epoch's last is smaller
    first = spec.ema.decay**updates
    if first < MOST_OF_THE_FIRST:
        return []
    better = 1 - float(f"{5 / max(updates, 5):.1g}")
    return [
        f"ema.decay: after the run's {updates:,.0f} updates {first:.0%} of the average is still what the first of them "
        f"left, and the average is what is evaluated; {f'try {better:.6g} or less' if better > 0 else 'leave ema out'}"
    ]


def _scaling(spec: TrainSpec) -> list[str]:
    if spec.batch.base is None or spec.algorithm.traits.group is not None:
        return []
    return [
        "algorithm.group: with `node` the number of workers whose mean is an update is known on the nodes only, so the "
        "learning rate is scaled as if all were on one; give the number of workers a node"
    ]


def _warmup(spec: TrainSpec) -> list[str]:
    """One that leads from the base rate to the scaled one, where these are the same; or none, where it is far."""
    times = spec.batch_scaling.batch_factor
    if spec.warmup.name == "none" and not spec.schedule.warms_up and times > FAR and spec.scaling.name != "none":
        return [
            f"warmup: the batch is {times:g} times batch.base, and the scaled rate is too high for a network that is "
            "still changing rapidly (Goyal et al. 2017, section 2.2); set warmup: gradual"
        ]
    if spec.warmup.name == "none" or spec.warms_up:
        return []
    return [
        f"warmup.name: {spec.warmup.name} leads from optimizer.lr to the scaled rate, and nothing raises that, so it "
        "does nothing; set batch.base and scaling, take linear, which begins at 0, or leave it out"
    ]
