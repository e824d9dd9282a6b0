"""The resolved recipe of a spec, before anything runs: every number with its formula and its source.

Imports neither torch nor Ray. Learning rates are those of the schedule itself, so the recipe shows what will run.
"""

from dataclasses import replace

from pydantic import Field

from trainers.algorithms.diloco.config import STREAMING, DilocoConfig
from trainers.algorithms.easgd.config import EasgdConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.data.names import NUM_TRAIN
from trainers.data.order import Order
from trainers.optim.loss_scale import FIRST, INTERVAL
from trainers.optim.optimizers.config import OptimizerSpec
from trainers.optim.optimizers.groups import GroupSpec
from trainers.spec import DataSpec, TrainSpec
from trainers.spec.advice import advice
from trainers.spec.compression import compressed
from trainers.spec.memory import (
    bytes_a_parameter,
    gradient_bytes,
    held_by_a_worker,
    num_versions,
    state_bytes,
    states_of_versions,
)
from trainers.spec.quantity import Explained, Quantity
from trainers.spec.told.parts import parts

SCALING = {"none": "", "sqrt": "paper 1, section 5", "linear": "paper 4, section 2.1"}
WARMUPS = {"constant": "paper 4, section 2.2", "gradual": "paper 4, section 2.2", "linear": "Vaswani et al. 2017, 5.3"}
PRECISIONS = {
    "float32": ("products, convolutions, parameters, gradients and sums", ""),
    "tf32": ("what goes into products and convolutions has 10 bits of mantissa; parameters and sums are float32", ""),
    "bfloat16": (
        "products and convolutions under autocast; parameters, gradients, sums and losses are float32",
        "Kalamkar et al. 2019",
    ),
    "float16": (
        f"as bfloat16; the loss is scaled by {FIRST:.0f}, doubled after {INTERVAL} updates, halved where g is infinite",
        "Micikevicius et al. 2018",
    ),
}
"""Formula and source of each."""
TOLD_ELSEWHERE = frozenset({"name", "optimizer", "kwargs", "lr", "weight_decay", "no_decay", "groups"})
"""Fields of an optimizer that are more than a number of its formula."""


class Phase(Explained):
    """A point of the run at which the learning rate, or its slope, changes."""

    name: str
    epoch: float
    examples: int
    """Examples trained before this point."""
    learning_rate: float
    formula: str = ""
    source: str = ""


class Recipe(Explained):
    """The numbers of a run, and its learning rate over time."""

    quantities: dict[str, Quantity]
    phases: list[Phase]
    warnings: list[str] = Field(default=[])
    """What the spec asks for that does nothing, or that is known to end badly."""


def known_examples(data: DataSpec) -> int | None:
    """The number of training examples of a dataset that is known by name; None if the data must be read for it."""
    found = NUM_TRAIN.get(data.name)
    return None if found is None else found - round(found * data.carved)


def explain(spec: TrainSpec, num_examples: int) -> Recipe:
    """The recipe of a spec on `num_examples` training examples, or on `data.limit` of them."""
    if spec.data.limit is not None:
        num_examples = min(num_examples, spec.data.limit)
    order = Order(num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed)
    quantities = _batch(spec) | _update(spec) | _course(spec) | _model(spec) | parts(spec) | _length(spec, order)
    return Recipe(quantities=quantities, phases=_phases(spec, order), warnings=advice(spec, num_examples))


def _batch(spec: TrainSpec) -> dict[str, Quantity]:
    k, n, base = spec.workers.num_virtual, spec.batch.per_worker, spec.batch.base
    traits = spec.algorithm.traits
    if traits.steps_alone or traits.outer is not None:
        between = "averages of parameters" if traits.is_synchronous else "pushes of what they changed"
        formula = f"n: each worker makes steps of its own between two {between}"
        if traits.averaged_each_step > 1:
            formula = f"g n = {traits.averaged_each_step} x {n}: a group averages after each step"
        if traits.group != 1:
            formula = f"g n = {_group_of(spec)}, whose workers make the same steps between two {between}"
        batch = Quantity(value=spec.update_batch, formula=formula, source="Stich 2019")
    elif traits.is_synchronous:
        batch = Quantity(value=spec.update_batch, formula=f"k n = {k} x {n}", source="paper 4, section 2.1")
    elif traits.group != 1:
        formula = f"g n = {_group_of(spec)}"
        batch = Quantity(value=spec.update_batch, formula=formula, source="paper 3, section III.B")
    elif spec.algorithm.traits.num_backup:
        formula = f"K n = {k - spec.algorithm.traits.num_backup} x {n}, of {k} workers' minibatches"
        batch = Quantity(value=spec.update_batch, formula=formula, source="Chen et al. 2016")
    else:
        formula = "n: each worker's minibatch is an update of its own"
        batch = Quantity(value=spec.update_batch, formula=formula, source="Dean et al. 2012")
    scaled = f"batch / base = {spec.update_batch} / {base}" if base else "batch.base is null: nothing is scaled"
    return {
        "workers": Quantity(value=k, formula="k, virtual workers"),
        "per_worker": Quantity(value=n, formula="n; batch norm is over these", source="paper 4, section 2.3"),
        "batch": batch,
        "base": Quantity(value=base, formula="the batch that optimizer.lr belongs to"),
        "factor": Quantity(value=spec.batch_scaling.batch_factor, formula=scaled),
    }


def _group_of(spec: TrainSpec) -> str:
    """How many workers and examples a group of an asynchronous algorithm has."""
    traits = spec.algorithm.traits
    known = "" if traits.group else "; g is the workers of a node, here as if all were on one"
    group = traits.minibatches_per_update(spec.workers.num_virtual)
    return f"{group} x {spec.batch.per_worker}, the mean of a group{known}"


def _update(spec: TrainSpec) -> dict[str, Quantity]:
    o, scaling = spec.optimizer, spec.scaling
    factor = {"none": "1", "sqrt": "sqrt(factor)", "linear": "factor"}[scaling.name]
    decay = {"keep": "w", "sqrt": "sqrt(factor) w", "exact": "(1 - (1 - lr w)^factor) / (sqrt(factor) lr)"}
    formula, source = o.formula
    name = getattr(o, "optimizer", o.name)  # that of a class
    exempt = " and ".join(kind.replace("_", " ") for kind in o.no_decay)
    decay_source = "paper 4, section 3" if scaling.weight_decay == "keep" else SCALING["sqrt"]
    return {
        "optimizer": Quantity(value=name, formula=formula, source=source),
        **_options(o),
        "optimizer_state": _state(spec),
        "worker_memory": _memory(spec),
        "base_rate": Quantity(value=o.lr, formula="lr, at the base batch"),
        "rate_factor": Quantity(value=spec.batch_scaling.rate_factor, formula=factor, source=SCALING[scaling.name]),
        "learning_rate": Quantity(
            value=spec.batch_scaling.learning_rate, formula=f"lr x {factor}", source=SCALING[scaling.name]
        ),
        "weight_decay": Quantity(
            value=spec.batch_scaling.weight_decay, formula=decay[scaling.weight_decay], source=decay_source
        ),
        "no_decay": Quantity(value=exempt or "none", source="paper 4, section 5.1" if exempt else ""),
        "clip": _clip(spec),
        "ema": _ema(spec),
        **_late(spec),
        **_averages(spec),
        **_outer(spec),
    } | {f"group_{index}": _group(spec, group, factor) for index, group in enumerate(o.groups)}


def _options(optimizer: OptimizerSpec) -> dict[str, Quantity]:
    """What else stands in the formula of an optimizer, by its field."""
    found = dict[str, Quantity]()
    for name, value in optimizer.model_dump(mode="json").items():
        if name not in TOLD_ELSEWHERE:
            text = ", ".join(map(str, value)) if isinstance(value, list) else value
            text = str(value).lower() if isinstance(value, bool) else text
            found[name] = Quantity(value=text, formula="b1, b2" if name == "betas" else "")
    return found


def _state(spec: TrainSpec) -> Quantity:
    """How much memory the optimizer's state takes, and who has it."""
    vectors, versions, traits = states_of_versions(spec), num_versions(spec), spec.algorithm.traits
    holders = "each worker" if spec.transport == "process_group" else "all workers of a node together"
    holders = "each virtual worker's copy" if traits.own_replicas else holders
    if traits.uses_parameter_server:
        holders = f"{spec.ps.shards} shards together"
    vectors = None if vectors is None else vectors + (spec.ema is not None)
    known = "its class keeps as much as it keeps" if vectors is None else f"4 bytes x {vectors} vectors"
    known += f" x {versions} versions" if vectors and versions > 1 else ""
    known += "" if spec.ema is None else ", the average one of them" if vectors else ", and the average"
    cut = ", cut between parameters" if spec.optimizer.whole else ""
    return Quantity(value=state_bytes(spec), formula=f"bytes a parameter: {known}; {holders}{cut}")


def _memory(spec: TrainSpec) -> Quantity:
    """What a worker needs beside the activations."""
    formula = (
        f"bytes a parameter, at least: {held_by_a_worker(spec)}; in all, with activations: millrace explain --memory"
    )
    return Quantity(value=bytes_a_parameter(spec), formula=formula)


def _clip(spec: TrainSpec) -> Quantity:
    """What the gradients are limited to."""
    clip, traits = spec.clip, spec.algorithm.traits
    if clip is None:
        return Quantity(value="none")
    which = "the mean gradient of an update"
    if traits.steps_alone or traits.own_replicas or traits.outer is not None:
        which = f"the mean gradient of each {'worker' if traits.group == 1 else 'group'}'s own step"
    elif traits.uses_parameter_server and not traits.is_synchronous and not traits.num_backup:
        which = "each push"
    if clip.norm is None:
        return Quantity(
            value=clip.value, formula=f"elements of g into [-value, value]; g: {which}", source="Mikolov 2012"
        )
    formula = f"g <- g min(1, norm / (|g| + 1e-6)); g: {which}, before weight decay"
    return Quantity(value=clip.norm, formula=formula, source="Pascanu et al. 2013")


def _ema(spec: TrainSpec) -> Quantity:
    """The average that is evaluated."""
    if spec.ema is None:
        return Quantity(value="none")
    formula = "a <- decay a + (1 - decay) w after each update; a is evaluated and exported"
    return Quantity(value=spec.ema.decay, formula=formula, source="Polyak and Juditsky 1992")


def _late(spec: TrainSpec) -> dict[str, Quantity]:
    """What shards make of gradients that were computed from older parameters."""
    late = spec.algorithm.traits.late
    return (
        {} if late is None else {"late_gradients": Quantity(value=late.name, formula=late.formula, source=late.source)}
    )


def _averages(spec: TrainSpec) -> dict[str, Quantity]:
    """How often workers that train by themselves average all that they have."""
    algorithm = spec.algorithm
    if not isinstance(algorithm, ParallelSgdConfig):
        return {}
    formula, source = algorithm.averages
    return {"average_every": Quantity(value=algorithm.average_every, formula=formula, source=source)}


def _outer(spec: TrainSpec) -> dict[str, Quantity]:
    """What is made of the steps of a round, where an optimizer of its own does that."""
    algorithm = spec.algorithm
    if isinstance(algorithm, EasgdConfig):
        alpha, formula = algorithm.alpha_of(spec.workers.num_virtual), algorithm.formula(spec.workers.num_virtual)
        return {"elastic": Quantity(value=alpha, formula=formula, source=algorithm.source)}
    if rule := algorithm.traits.outer:
        formula = rule.formula(algorithm.traits.num_pushers(spec.workers.count))
        return {"outer": Quantity(value=rule.lr, formula=formula, source=rule.source)}
    if not isinstance(algorithm, DilocoConfig):
        return {}
    outer, every = algorithm.outer, algorithm.average_every
    formula = f"{outer.formula}, every {every} steps and at the end of an epoch"
    found = {"outer": Quantity(value=outer.lr, formula=formula, source=algorithm.source)}
    if algorithm.streams:
        found["fragments"] = Quantity(value=algorithm.fragments, formula=algorithm.turns, source=STREAMING)
    return found


def _group(spec: TrainSpec, group: GroupSpec, factor: str) -> Quantity:
    if group.frozen:
        return Quantity(value=0, formula=f"{', '.join(group.patterns)}: frozen, neither sent nor updated")
    part = replace(spec.batch_scaling, optimizer=spec.optimizer.of_group(group))
    others = {name: value for name, value in group.options.items() if name not in ("lr", "weight_decay")}
    options = "".join(f", {name} {value}" for name, value in others.items())
    which = f"learning rate of {', '.join(group.patterns)}: its lr x {factor}"
    course = "" if group.schedule is None else f", schedule {group.schedule.name}"
    return Quantity(value=part.learning_rate, formula=f"{which}; weight_decay {part.weight_decay:g}{options}{course}")


def _course(spec: TrainSpec) -> dict[str, Quantity]:
    name = spec.warmup.name
    warmup = "the base rate throughout" if name == "constant" else "a constant increment an iteration"
    warmup = "" if name == "none" else f"{spec.warmup.length}, {warmup}"
    if name != "none" and not spec.warms_up:
        warmup = "does nothing: scaling does not raise the rate"
    return {
        "warmup": Quantity(value=name, formula=warmup, source=WARMUPS.get(name, "")),
        "schedule": Quantity(value=spec.schedule.name, source=spec.schedule.source),
    }


def _model(spec: TrainSpec) -> dict[str, Quantity]:
    model, count, paper = spec.model, spec.evaluate.recompute_statistics, "paper 4, section 5.1"
    is_he = model.init == "he"
    he = "convolutions N(0, 2 / fan out), last layer N(0, 0.01^2)" if is_he else "the model's own"
    formula, source = PRECISIONS[spec.precision]
    statistics = f"computed anew on {count} minibatches" if count else "running averages"
    return {
        **_evaluated(spec),
        "precision": Quantity(value=spec.precision, formula=formula, source=source),
        "wire": _wire(spec),
        **compressed(spec),
        "compile": Quantity(
            value=str(model.compile).lower(), formula="torch.compile, to train" if model.compile else ""
        ),
        "checkpoint_activations": _recomputed(spec),
        "init": Quantity(value=model.init, formula=he, source=paper if is_he else ""),
        "zero_gamma": Quantity(value=str(model.zero_gamma).lower(), source=paper if model.zero_gamma else ""),
        "statistics": Quantity(value=statistics, source="paper 4, figure 4" if count else paper),
    }


def _evaluated(spec: TrainSpec) -> dict[str, Quantity]:
    """The classes that are evaluated, where they are a part of all."""
    classes = spec.evaluate.classes
    if classes is None:
        return {}
    formula = "examples of other classes are left out, the logits of those classes masked"
    value = f"{len(classes)} classes: {', '.join(map(str, classes))}"
    return {"evaluated": Quantity(value=value, formula=formula, source="paper 4, section 5.3")}


def _wire(spec: TrainSpec) -> Quantity:
    """In which numbers gradients travel, and how much of each element."""
    if spec.wire == "float32":
        return Quantity(value=spec.wire, formula="whatever travels is float32")
    source = PRECISIONS["bfloat16"][1]
    if not spec.algorithm.traits.is_synchronous:
        formula = (
            "each push is rounded once: 2 bytes an element, 4 where shards of the node read it in place; fetches 4"
        )
        return Quantity(value=spec.wire, formula=formula, source=source)
    rounded, plain = (gradient_bytes(spec, wire) for wire in (spec.wire, "float32"))
    formula = "each virtual worker's gradient is rounded once; sums and what comes back are float32"
    sent = f"{rounded} bytes an element of the gradients of {spec.workers.count} workers, {plain} in float32"
    return Quantity(value=spec.wire, formula=f"{formula}; {sent}", source=source)


def _recomputed(spec: TrainSpec) -> Quantity:
    which = spec.model.checkpoint_activations
    if not which:
        return Quantity(value="false")
    value = "true" if which is True else ", ".join(which)
    return Quantity(
        value=value,
        formula="blocks keep their inputs; one more forward pass",
        source="Chen et al. 2016, sublinear memory cost",
    )


def _length(spec: TrainSpec, order: Order) -> dict[str, Quantity]:
    if spec.algorithm.traits.is_synchronous:
        steps, formula = order.steps, f"ceil(examples / (k n)) = ceil({order.num_examples} / {spec.global_batch})"
    elif spec.algorithm.traits.group != 1:
        group = spec.algorithm.traits.minibatches_per_update(spec.workers.num_virtual)
        steps, formula = -(-order.minibatches // group), f"minibatches / g = {order.minibatches} / {group}"
    elif quorum := spec.algorithm.traits.quorum(spec.workers.num_virtual):
        steps, formula = -(-order.minibatches // quorum), f"minibatches / K = {order.minibatches} / {quorum}"
    else:
        steps, formula = order.minibatches, f"minibatches, ceil({order.num_examples} / {spec.update_batch})"
    return {
        "examples": Quantity(value=order.num_examples, formula="training examples an epoch"),
        "steps_per_epoch": Quantity(value=steps, formula=formula),
        "epochs": Quantity(value=spec.epochs, formula="the same at every batch", source="paper 4, section 5.1"),
        "steps": _steps(spec, order, steps),
    }


def _steps(spec: TrainSpec, order: Order, per_epoch: int) -> Quantity:
    extent = spec.extent(order.num_examples)
    if (extent.epochs, extent.minibatches) == (spec.epochs, 0):
        return Quantity(value=per_epoch * spec.epochs, formula="steps an epoch x epochs")
    rest = extent.minibatches // spec.minibatches_per_step
    limit = "max_steps" if extent.epochs * per_epoch + rest == spec.max_steps else "max_examples"
    return Quantity(value=extent.epochs * per_epoch + rest, formula=f"ends before the epochs do, by {limit}")


def _phases(spec: TrainSpec, order: Order) -> list[Phase]:
    schedule, num, source = spec.learning_rate(order.num_examples), order.num_examples, spec.schedule.source
    run = spec.run_length(num)

    def phase(name: str, examples: float, formula: str, source: str) -> Phase:
        seen = -int(-examples // 1)  # rounded up: the first update that lies completely in the phase
        rate = schedule(seen)
        return Phase(name=name, epoch=seen / num, examples=seen, learning_rate=rate, formula=formula, source=source)

    rule, warmup = SCALING[spec.scaling.name], WARMUPS.get(spec.warmup.name, "")
    scaled = "learning_rate" if spec.batch.base else "lr"
    first = "0" if spec.warmup.name == "linear" else "lr, the base rate"
    found = [phase("start", 0, first if run.warmup else scaled, warmup if run.warmup else rule)]
    if run.warmup:
        found.append(phase("end of warm-up", run.warmup, f"{scaled} by the schedule", warmup))
    marks = [mark for mark in spec.schedule.marks(run) if run.warmup < mark.examples < run.total]
    found += [phase(mark.name, mark.examples, f"{scaled} x {mark.formula}", source) for mark in marks]
    return [*found, phase("last update", run.total - _last_update(spec, order), "", source)]


def _last_update(spec: TrainSpec, order: Order) -> int:
    """Its examples."""
    per_step = order.num_virtual if spec.algorithm.traits.is_synchronous else 1
    end = spec.extent(order.num_examples).minibatches or order.minibatches
    return sum(order.size(index) for index in range((end - 1) // per_step * per_step, end))
