"""From a spec to everything that one process of a run works with: data, model, order, rule, first version."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from trainers import user_code
from trainers.algorithms.base import Context, Start
from trainers.collectives.protocol import Collectives
from trainers.data.batches import Batch, Dataset, on_device
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.data.order import HeldOrder, Order, Partitions
from trainers.data.partitioned.dataset import PartitionedDataset
from trainers.data.records.ray_rows import OpenRows
from trainers.errors import SpecRejected, UserCodeFailed
from trainers.models.dropout import replace_dropout
from trainers.models.layout import Layout, lay_out
from trainers.models.module_buffers import Named, in_common
from trainers.models.passes.compiled import check_compiler
from trainers.models.passes.memory_format import breaks_channels_last
from trainers.models.passes.precision import emulated
from trainers.models.passes.recomputed import recompute
from trainers.models.products.threads import use_threads
from trainers.models.replica import UNKNOWN, Replica
from trainers.models.statistics import recomputed_statistics
from trainers.models.weights import load_weights, told_of_weights
from trainers.optim.buffers import Buffers, State
from trainers.optim.compress.config import COLUMNS, kept_names
from trainers.optim.loss_scale import LossScale
from trainers.optim.members import freeze
from trainers.optim.optimizer import Optimizer
from trainers.optim.schedules import Schedule
from trainers.spec import TrainSpec
from trainers.spec.resume_key import resume_key
from trainers.tasks.base import Task, check_headline, measured
from trainers.tasks.classification import Classification
from trainers.tasks.registry import build_task_model, check_objective, collate_of, collates, task_for
from trainers.training.checkpoint import Checkpoint, newest_whole, read_checkpoint
from trainers.training.device import choose_device, place_name
from trainers.training.messages import RunLayout
from trainers.training.optimizer import build_optimizer, ends, optimizer_of, own_optimizer_of
from trainers.training.position import Position

CHECKED = 2
"""Examples of a spec's first minibatch with which it is tried."""


@dataclass(frozen=True)
class Setup:
    """What a worker, the evaluator and the preflight have in common."""

    spec: TrainSpec
    dataset: Dataset
    task: Task
    order: Order
    replica: Replica
    optimizer: Optimizer
    """What makes the versions, of the flat vector."""
    own_optimizer: Optimizer
    """What steps on gradients: the same one, unless shards apply what workers changed by it."""
    schedule: Schedule
    groups: tuple[slice, ...]
    """Groups of parameters that are pushed and fetched by themselves."""
    whole: dict[str, Path] = field(default_factory=dict)
    """By the checkpoint that was to be begun from: itself, or the one before it that is whole."""
    damaged: dict[str, list[str]] = field(default_factory=dict)
    """Likewise: what is wrong with those that were passed over."""

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in the flat vector."""
        return self.replica.layout

    def begin(self, resume: str | None = None) -> tuple[Start, Position]:
        """The first version: the model as built, or the checkpoint `resume`, by default the one that the spec names.

        The buffers of a checkpoint go into the replica.
        """
        resume = resume or self.spec.checkpoint.resume
        if resume is None:
            return self.blank(), Position()
        found = read_checkpoint(self._whole(resume))
        position = self._taken_up(found)
        params = self.layout.flatten(found.model)
        state = self.optimizer.initial_state(params)
        for name in state.keys() & found.optimizer.keys():  # what was frozen then begins anew
            state[name] = self.layout.flatten(self.layout.named(state[name]) | found.optimizer[name])
        state |= self._private(found)
        newcomers = dict.fromkeys(range(self.order.num_virtual), in_common(found.buffers)) if found.buffers else {}
        as_built = self.replica.module_buffers.initial  # older checkpoints have only floating ones
        for rank, buffers in (newcomers | found.buffers).items():
            here = {name: value.to(self.replica.device, copy=True) for name, value in (as_built | buffers).items()}
            self.replica.buffers[rank] = here
        scale = LossScale(position.loss_scale, position.scaled_updates)
        start = Start(Buffers(params, state), position.examples, position.learning_rate, scale)
        versions = map(self.layout.named, start.buffers.vectors)
        self.spec.algorithm.leave_out(self.replica.model, versions, as_built=False)
        return start, position

    def take_frozen(self) -> None:
        """Give the parameters that are not trained the values that they have in the spec's checkpoint.

        Raises:
            SpecRejected: It has not all of them.
        """
        frozen, resume = self.replica.frozen, self.spec.checkpoint.resume
        if not frozen or resume is None:
            return
        found = load_weights(self._whole(resume) / "model.safetensors")
        if missing := set(frozen) - set(found):
            raise SpecRejected(f"checkpoint.resume: the checkpoint has no {min(missing)}; it is another model's")
        for name, parameter in frozen.items():
            parameter.copy_(found[name])

    def _whole(self, resume: str) -> Path:
        if resume not in self.whole:  # once: their files are large
            self.whole[resume], self.damaged[resume] = newest_whole(Path(resume))
        return self.whole[resume]

    def blank(self) -> Start:
        """The model as built."""
        if self.replica.is_as_built:
            params = self.replica.initial_params()
        else:  # it has trained since
            model = build_task_model(self.task, self.spec.model, self.spec.seed)
            self.spec.algorithm.replace_layers(model, self.spec.model.weights is None)
            params = self.layout.flatten({name: p.detach() for name, p in model.named_parameters()})
        as_built = self.spec.model.weights is None
        self.spec.algorithm.leave_out(self.replica.model, [self.layout.named(params)], as_built)
        return Start(Buffers(params, self.optimizer.initial_state(params)))

    def following(self, num_virtual: int) -> "Setup":
        """The same while there are so many virtual workers."""
        if num_virtual == self.order.num_virtual:
            return self
        spec, num = self.spec.following(num_virtual), self.dataset.num_train
        now = self.optimizer
        groups = [ends(group.spans) for group in now.groups]
        optimizer = build_optimizer(spec, num, ends(now.exempt), groups, now.parameters)
        order, schedule = build_order(spec, num), spec.learning_rate(num)
        return replace(self, spec=spec, order=order, schedule=schedule, optimizer=optimizer, own_optimizer=optimizer)

    def _is_behind(self, position: Position) -> bool:
        """Whether all that the run would train is trained at this position."""
        extent = self.spec.extent(self.dataset.num_train)
        if position.within_epoch and position.epoch >= extent.epochs:
            return position.examples >= extent.examples
        return position.epoch >= extent.epochs + (extent.minibatches > 0)

    def _private(self, found: Checkpoint) -> State:
        """What only this algorithm knows, from a checkpoint of its own whose examples were divided as now."""
        names = self.spec.algorithm.private_names(self.optimizer.state_names, self.order.num_virtual)
        names += () if self.spec.compress is None else (COLUMNS, *kept_names(self.order.num_virtual))
        if not any(name in found.optimizer for name in names):
            return {}
        theirs = TrainSpec.model_validate(found.spec)
        if theirs.algorithm.name != self.spec.algorithm.name or resume_key(theirs) != resume_key(self.spec):
            return {}
        whole = [name for name in names if set(self.layout.names) <= set(found.optimizer.get(name, ()))]
        return {name: self.layout.flatten(found.optimizer[name]) for name in whole}

    def _taken_up(self, found: Checkpoint) -> Position:
        """Where this run goes on from a checkpoint.

        Raises:
            SpecRejected: It is another model's, there is nothing left to train, or the examples of the epoch under way
                are divided in another way.
        """
        if missing := set(self.layout.names) - set(found.model):
            raise SpecRejected(f"checkpoint.resume: the checkpoint has no {min(missing)}; it is another model's")
        for name, shape in zip(self.layout.names, self.layout.shapes, strict=True):
            if (held := tuple(found.model[name].shape)) != shape:
                raise SpecRejected(f"checkpoint.resume: its {name} is of {held}, not {shape}; it is another model's")
        position = found.position
        if self._is_behind(position):
            limits = [name for name in ("max_steps", "max_examples") if getattr(self.spec, name) is not None]
            larger = "".join(f", and a larger {name}" for name in limits)
            raise SpecRejected(f"epochs: the checkpoint has {position.epoch} behind it; set more than that{larger}")
        if not position.within_epoch:  # the set, and with it the examples an epoch, may have changed
            return replace(position, examples=position.epoch * self.dataset.num_train)
        before = TrainSpec.model_validate(found.spec)
        mine, theirs = resume_key(self.spec), resume_key(before)
        for name in mine | theirs:
            if mine.get(name) != theirs.get(name):
                which = f"{before.algorithm.name}, " if name == "algorithm" else ""
                raise SpecRejected(
                    f"{name}: the checkpoint lies within an epoch that was begun with {which}{theirs.get(name)}; "
                    f"keep that, or resume from a checkpoint at the end of an epoch"
                )
        return position

    def statistics(self, params: Tensor, buffers: dict[int, Named]) -> Named:
        """The buffers that evaluation uses: what those of the virtual ranks have in common. Where the spec asks for it,
        batch norm has what the first minibatches of the first epoch have under these parameters (P,)."""
        means, n = in_common(buffers), self.spec.batch.per_worker
        count = min(self.spec.evaluate.recompute_statistics, max(1, self.dataset.num_train // n))
        if not count:
            return means
        plan = ((0, self.order.examples(0, index)) for index in range(count))
        with self.replica.evaluating(params, means) as model:
            minibatches = (batch.data for batch in self.dataset.batches(plan) if len(batch))
            return recomputed_statistics(model, minibatches, partial(self.task.loss, model))

    def context(self, start: Start) -> Context:
        """What the algorithm needs on this worker, but for its way to the others."""
        return Context(
            replica=self.replica,
            optimizer=self.own_optimizer,
            schedule=self.schedule,
            num_virtual=self.order.num_virtual,
            start=start,
            inputs=self.dataset.facts.inputs,
            partition_sizes=self.order.partition_sizes,
            per_worker=self.order.per_worker,
            wire=self.spec.wire,
            compress=self.spec.compress,
            seed=self.spec.seed,
            groups=self.groups,
        )

    def run_layout(self) -> RunLayout:
        """What the coordinator and the shards must know of it, with where the run begins."""
        (_, position), data = self.begin(), self.dataset
        return RunLayout(
            num_examples=self.dataset.num_train,
            minibatches=self.order.minibatches,
            steps=self.order.steps,
            numel=self.layout.numel,
            shards=tuple((cut.start, cut.stop) for cut in self.layout.shards),
            device=place_name(self.replica.device),
            position=position,
            exempt=ends(self.optimizer.exempt),
            parameter_groups=tuple(ends(group.spans) for group in self.optimizer.groups),
            parameters=self.optimizer.parameters,
            groups=ends(self.groups),
            damaged=tuple(fault for faults in self.damaged.values() for fault in faults),
            chance_loss=self.task.chance_loss(),
            data=(data.facts.sentence(data.num_train, data.num_test, data.num_validation), *data.told, *self.task.told),
            weights="" if self.spec.checkpoint.resume else told_of_weights(self.replica.model),
            has_validation=data.num_validation > 0,
            skipped=data.skipped,
            compiled_s=self.replica.compiled_s,
            slow=emulated(self.spec.precision, self.replica.device),
            headline=self.task.headline,
            higher_is_better=self.task.higher_is_better,
        )

    def hold(self, ranks: range, position: Position) -> None:
        """Where workers hold only their own examples: take those of virtual `ranks`, as they lie at `position`."""
        if isinstance(self.dataset, PartitionedDataset) and isinstance(self.order, HeldOrder):
            how = self.spec.algorithm.partitioning(self.spec.seed, self.order.partition_sizes)
            rounds = position.epoch + (position.step > 0)  # the round under way began with a shuffle too
            self.dataset.hold(self.order, ranks, how, rounds)

    def meet(self, collectives: Collectives) -> None:
        """Where examples move between workers, they do it through these."""
        if isinstance(self.dataset, PartitionedDataset):
            self.dataset.meet(collectives)


def set_up(
    spec: TrainSpec,
    folder: Path | None,
    note: Callable[[str], None] = lambda _: None,
    open_rows: OpenRows | None = None,
) -> Setup:
    """Open the data (shared in `folder` with the other processes of the node) and build the model.

    Args:
        note: Is told what is done next, in a few words: either may take minutes.
        open_rows: The way to the rows of a Ray Dataset, in a process of a run on Ray.

    Raises:
        SpecRejected: The model, the data or the machine do not allow the spec.
    """
    use_threads(spec.workers.threads)
    device = choose_device(spec)
    note(f"opens the dataset {spec.data.name}")
    open_data = open_partitioned if spec.algorithm.traits.holds_examples else open_dataset
    dataset = open_data(spec.data, spec.seed, folder, device, note, open_rows)
    note(f"builds the model {spec.model.name}")
    task = task_for(spec.task, spec.loss, dataset)
    if spec.evaluate.classes is not None:
        assert isinstance(task, Classification)  # so says the spec
        task.evaluate_only(spec.evaluate.classes)
    check_objective(task, spec.task, spec.algorithm)
    if collates(task):
        dataset.collate_by(partial(collate_of, spec.task, spec.loss, task.facts))
    model = build_task_model(task, spec.model, spec.seed)
    spec.algorithm.replace_layers(model, as_built=spec.model.weights is None)
    freeze(model, spec.optimizer.groups)
    num_shards = spec.ps.shards if spec.algorithm.traits.uses_parameter_server else 1
    channels_last = spec.model.memory_format == "channels_last" and not breaks_channels_last(model)
    try:
        layout = lay_out(model, num_shards, spec.ps.placement, channels_last, spec.optimizer.whole)
    except ValueError as error:
        raise SpecRejected(f"ps.shards: {error}") from error
    dataset.weigh = task.weigh
    draws = replace_dropout(model, spec.seed)
    recompute(model, spec.model.checkpoint_activations)
    try:
        groups = spec.algorithm.parameter_groups(model, layout)
    except ValueError as error:
        raise SpecRejected(f"algorithm.{error}") from error
    skips = spec.data.on_error == "skip" and not dataset.fits_in_memory
    setup = Setup(
        spec=spec,
        dataset=dataset,
        task=task,
        order=build_order(spec, dataset.num_train),
        replica=Replica(model, layout, device, draws, task, skips, spec.precision, spec.model.compile),
        optimizer=optimizer_of(spec, dataset.num_train, model, layout),
        own_optimizer=own_optimizer_of(spec, dataset.num_train, model, layout),
        schedule=spec.learning_rate(dataset.num_train),
        groups=groups,
    )
    setup.take_frozen()
    return setup


def build_order(spec: TrainSpec, num_examples: int) -> Order:
    """Which examples belong to which minibatch, as the algorithm needs it."""
    traits = spec.algorithm.traits
    kind = Partitions if traits.keeps_partitions else HeldOrder if traits.holds_examples else Order
    return kind(num_examples, spec.batch.per_worker, spec.workers.num_virtual, spec.seed, spec.data.shuffle)


def preflight(spec: TrainSpec, on_setup: Callable[[Setup], object] = lambda _: None) -> None:
    """Whatever can be found wrong without training: data, model, layout, checkpoint, one minibatch.

    on_setup: Is given what was opened, before anything is read through it. Raises SpecRejected, with the remedy.
    """
    setup = set_up(spec, None)
    on_setup(setup)
    with setup.dataset:
        check(setup)


def check(setup: Setup) -> None:
    """One minibatch forward and backward, thrown away.

    Raises:
        SpecRejected: The model does not train on this data, or not with this algorithm.
        UserCodeFailed: A model or a task of the user's raised.
    """
    spec, model = setup.spec, setup.replica.model
    spec.algorithm.check_model(model, spec.workers.count)
    spec.algorithm.check_inputs(model, setup.dataset.facts.inputs, spec.most_workers)
    setup.begin()
    if spec.algorithm.traits.divides_examples:
        return
    params = setup.replica.initial_params()
    if compiles := spec.model.compile:
        check_compiler(setup.replica.device)
    tried = setup.order.examples(0, 0)[: None if compiles else CHECKED]  # what is compiled, is of a whole minibatch
    batch = next(iter(setup.dataset.batches([(0, tried)])))
    begun = time.perf_counter()
    try:
        setup.replica.gradient(params, batch, torch.zeros_like(params), virtual_rank=UNKNOWN)
        setup.replica.compiled_s = time.perf_counter() - begun if compiles else 0.0
        if user_code.is_user_name(spec.task.name):
            _try_metrics(setup, params, batch)
    except Exception as error:
        raise _does_not_train(spec, error) from error
    finally:
        setup.replica.buffers.pop(UNKNOWN, None)
        setup.replica.is_as_built = True  # nothing was updated


def _try_metrics(setup: Setup, params: Tensor, batch: Batch) -> None:
    """Raises UserCodeFailed where the user's `metrics` gives no measures, or not the headline. What else it raises may
    be for want of examples, as where a curve needs both classes: if not, the first evaluation tells it."""
    with setup.replica.evaluating(params, {}) as model:
        try:
            check_headline(setup.task, measured(setup.task, model, on_device(batch.data, setup.replica.device)))
        except UserCodeFailed:
            raise
        except Exception:
            return


def _does_not_train(spec: TrainSpec, error: Exception) -> Exception:
    """What to tell of the error that the first minibatch raised; of a user's code with where it is."""
    own = [name for name in (spec.model.name, spec.task.name) if user_code.is_user_name(name)]
    if own and not user_code.is_of_ours(error):
        return user_code.failed(f"{' with '.join(own)}, on the first examples of {spec.data.name},", error)
    if not isinstance(error, (RuntimeError, ValueError, TypeError, IndexError)):
        return error
    return SpecRejected(f"model: {spec.model.name} does not train on {spec.data.name}: {error}")
