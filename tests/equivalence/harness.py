"""Runs an algorithm on the local transport, and the serial programs that it must equal."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from tests.equivalence.optimizers import torch_optimizer
from trainers.algorithms.base import Context, Start, StepReport
from trainers.collectives.local import local_collectives
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.data.batches import Batch, Dataset
from trainers.data.datasets import open_dataset, open_partitioned
from trainers.data.order import HeldOrder, Order
from trainers.elastic.lease_table import Lease, LeaseDispatcher, LeaseTable
from trainers.links.local import LocalWorld
from trainers.metrics import StepCounters
from trainers.models.dropout import replace_dropout
from trainers.models.layout import Layout, lay_out
from trainers.models.passes.memory_format import breaks_channels_last
from trainers.models.products.choice import UNMEASURED, Choice
from trainers.models.replica import Replica
from trainers.optim.buffers import Buffers
from trainers.optim.members import freeze
from trainers.optim.optimizer import Optimizer
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.groups import GroupSlice, parts
from trainers.parameter_server.local import LocalServer, LocalStore, local_shard
from trainers.parameter_server.protocol import ParameterStore
from trainers.parameter_server.shard import ShardConfig
from trainers.spec import ClipSpec, TrainSpec
from trainers.tasks.base import Task
from trainers.tasks.registry import build_task_model, collate_of, collates, task_for
from trainers.training.optimizer import optimizer_of, own_optimizer_of, rate_of_versions
from trainers.training.setup import build_order
from trainers.training.work import GroupPosition, leased, synchronous

CPU = torch.device("cpu")


class SmallNet(nn.Module):
    """Convolution, batch norm, dropout and two fully connected layers on 1 x 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.3), nn.Linear(4 * 16, 33), nn.Linear(33, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)
        return self.fc2(torch.relu(self.fc1(self.drop(x))))


def build_net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallNet()


DIGITS = {
    "data": {"name": "digits", "limit": 203, "random_crop": 1},
    "batch": 7,
    "epochs": 2,
    "seed": 3,
}
"""29 minibatches an epoch, the last one with all of its 7 examples: neither 2 nor 3 workers divide them evenly."""


def digits_spec(fields: dict[str, object]) -> TrainSpec:
    """A spec that trains a small set of digits, unless its fields give other data."""
    return TrainSpec.model_validate(DIGITS | fields)


@dataclass
class Run:
    """Everything a worker of a spec needs, on one model of digits."""

    spec: TrainSpec
    net: Callable[[int], nn.Module] | None = None
    """By default `build_net` for images, and for other data the model of the spec."""
    products: Choice = UNMEASURED
    task: Task = field(init=False)
    dataset: Dataset = field(init=False)
    order: Order = field(init=False)
    layout: Layout = field(init=False)
    optimizer: Optimizer = field(init=False)
    own_optimizer: Optimizer = field(init=False)
    groups: tuple[slice, ...] = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.dataset = self.opened()
        self.task = task_for(spec.task, spec.loss, self.dataset)
        if self.net is None:
            of_spec = partial(build_task_model, self.task, spec.model)
            self.net = build_net if spec.data.name == "digits" and spec.task.name == "classification" else of_spec
        self.order = build_order(spec, self.dataset.num_train)
        shards = spec.ps.shards if spec.algorithm.traits.uses_parameter_server else 1
        model = self.model()
        channels_last = spec.model.memory_format == "channels_last" and not breaks_channels_last(model)
        self.layout = lay_out(model, shards, spec.ps.placement, channels_last, spec.optimizer.whole)
        self.optimizer = optimizer_of(spec, self.dataset.num_train, model, self.layout)
        self.own_optimizer = own_optimizer_of(spec, self.dataset.num_train, model, self.layout)
        self.groups = spec.algorithm.parameter_groups(model, self.layout)

    def opened(self) -> Dataset:
        """The dataset for one worker: one that is read example by example has one reader."""
        spec, dataset = self.spec, open_dataset(self.spec.data, self.spec.seed, None)
        if collates(task_for(spec.task, spec.loss, dataset)):
            dataset.collate_by(partial(collate_of, spec.task, spec.loss, dataset.facts))
        return dataset

    def model(self) -> nn.Module:
        model = self.net(self.spec.seed)
        self.spec.algorithm.replace_layers(model, as_built=True)
        freeze(model, self.spec.optimizer.groups)
        return model

    def replica(self) -> Replica:
        model = self.model()
        draws = replace_dropout(model, self.spec.seed)
        compiles = self.spec.model.compile
        found = Replica(model, self.layout, CPU, draws, self.task, precision=self.spec.precision, compiles=compiles)
        found.multiply_as(self.products)
        return found

    def start(self) -> Start:
        replica = self.replica()
        params = replica.initial_params()
        self.spec.algorithm.leave_out(replica.model, [self.layout.named(params)], as_built=True)
        return Start(Buffers(params, self.optimizer.initial_state(params)))

    def context(self, **exchange: object) -> Context:
        return Context(
            replica=self.replica(),
            optimizer=self.own_optimizer,
            groups=self.groups,
            wire=self.spec.wire,
            compress=self.spec.compress,
            seed=self.spec.seed,
            schedule=self.spec.learning_rate(self.dataset.num_train),
            num_virtual=self.spec.workers.num_virtual,
            inputs=self.dataset.facts.inputs,
            start=self.start(),
            partition_sizes=self.order.partition_sizes,
            per_worker=self.order.per_worker,
            **exchange,  # type: ignore[arg-type]
        )

    def shards(self) -> list[dict[int, GroupSlice]]:
        params, readers = self.start().buffers.params, self.spec.workers.count

        def piece(span: slice) -> GroupSlice:
            return GroupSlice(span, local_shard(self.shard_config(span), params[span], num_readers=readers))

        held = [parts(cut, self.groups) for cut in self.layout.shards]
        return [{group: piece(span) for group, span in spans.items()} for spans in held]

    def shard_config(self, cut: slice) -> ShardConfig:
        algorithm = self.spec.algorithm
        quorum = algorithm.traits.quorum(self.order.num_virtual)
        update = SliceUpdate(self.optimizer.within(cut), cut.stop - cut.start, CPU)
        schedule = rate_of_versions(self.spec, self.dataset.num_train)
        return ShardConfig(update, schedule, quorum, algorithm.traits.num_backup, algorithm.traits.harmless_staleness)

    def examples(self, worker: int, collectives: Collectives, rounds: int = 0) -> tuple[Dataset, Order]:
        """The dataset and order of one worker, from the start of round `rounds`."""
        if not self.spec.algorithm.traits.holds_examples:
            return self.dataset if self.dataset.fits_in_memory else self.opened(), self.order
        dataset, order = (
            open_partitioned(self.spec.data, self.spec.seed),
            build_order(self.spec, self.dataset.num_train),
        )
        assert isinstance(order, HeldOrder)
        how = self.spec.algorithm.partitioning(self.spec.seed, order.partition_sizes)
        dataset.hold(order, self.ranks(worker, collectives.size), how, rounds)
        dataset.meet(collectives)
        return dataset, order

    def ranks(self, worker: int, size: int) -> range:
        return range(*block(self.order.num_virtual, worker, size))


@dataclass
class Outcome:
    params: Tensor  # (P,)
    reports: list[StepReport]
    staleness: dict[int, int] = field(default_factory=dict)
    leases: LeaseTable | None = None
    buffers: Buffers | None = None
    group_staleness: list[dict[int, int]] = field(default_factory=list)
    """Per group of parameters, on the first shard that holds a part of it."""
    traffic: StepCounters = field(default_factory=StepCounters)
    """Sum over all workers: what they pushed and fetched, or without shards what they sent each other."""


def run_all_reduce(run: Run) -> Outcome:
    """An algorithm without a parameter server, on `workers.count` local workers."""
    size = run.spec.workers.count
    world = LocalWorld(run.spec.seed)
    collectives = local_collectives(world, size)

    def worker(rank: int) -> tuple[Buffers | None, list[StepReport]]:
        algorithm = run.spec.algorithm.build(run.context(collectives=collectives[rank]))
        works = synchronous(*run.examples(rank, collectives[rank]), run.ranks(rank, size), run.spec.epochs)
        reports = [algorithm.step(work) for work in works]
        return algorithm.gather_state(), reports

    results = world.run([lambda rank=rank: worker(rank) for rank in range(size)])
    version = results[0][0]
    assert version is not None
    reports = [report for _, reports in results for report in reports]
    return Outcome(version.params, reports, buffers=version, traffic=total(collectives))


def run_through_shards(run: Run, seed: int = 0, lease_size: int = 6) -> Outcome:
    """An algorithm with a parameter server, on `workers.count` local workers."""
    size = run.spec.workers.count
    world = LocalWorld(seed)
    server = LocalServer(world, run.shards())
    groups = run.spec.algorithm.groups(["here"] * size)
    lease_size = 1 if run.spec.algorithm.traits.num_backup else lease_size
    subgroup = {rank: ranks for ranks in groups for rank in ranks} if run.spec.algorithm.traits.uses_collectives else {}
    leaders = [rank for rank in range(size) if rank not in subgroup or subgroup[rank][0] == rank]
    stores = {worker: LocalStore(server, worker) for worker in leaders}
    members = dict(zip(range(size), local_collectives(world, size), strict=True))
    leases = LeaseTable(run.order, run.spec.epochs, lease_size, multiple=lease_size)
    dispatcher = LeaseDispatcher(leases, groups)

    def works(worker: int) -> Iterator:
        dataset = run.dataset if run.dataset.fits_in_memory else run.opened()
        if run.spec.algorithm.traits.is_synchronous:
            return synchronous(dataset, run.order, run.ranks(worker, size), run.spec.epochs)
        mine = subgroup.get(worker, [worker])
        place = GroupPosition(worker, mine.index(worker), len(mine)) if len(mine) > 1 else GroupPosition()
        return leased(dataset, run.order, iter(lambda: dispatcher.lease(worker), None), place)

    def worker(rank: int) -> list[StepReport]:
        within = [members[rank].subgroup(ranks) for ranks in (groups if subgroup else ())]
        collectives = next((group for group in within if group is not None), None)
        algorithm = run.spec.algorithm.build(run.context(store=stores.get(rank), collectives=collectives))
        reports = []
        for work in works(rank):
            reports.append(algorithm.step(work))
            if reports[-1].dropped:
                index = work.minibatches[0].index
                dispatcher.drop(rank, Lease(work.epoch, index, index))
        algorithm.finish()
        return reports

    reports = world.run([lambda rank=rank: worker(rank) for rank in range(size)])
    params = torch.cat([shard.params for shard in server.shards])
    for store in stores.values():
        for push in store.applied:
            dispatcher.applied(store.worker, Lease(push.identity.epoch, push.identity.first, push.identity.last))
    staleness = sum((Counter(store.staleness) for store in stores.values()), Counter[int]())
    groups = [dict(pieces[0].shard.staleness) for _, pieces in sorted(server.groups.items())]
    all_reports = [report for worker in reports for report in worker]
    return Outcome(params, all_reports, dict(staleness), leases, None, groups, total(stores.values()))


def total(members: Iterable[Collectives | ParameterStore]) -> StepCounters:
    """What all of them have sent and received."""
    counted = sum((member.meter.counted for member in members), StepCounters())
    return StepCounters(**counted.model_dump(include={"sent_bytes", "received_bytes", "shuffled_bytes", "halo_bytes"}))


WrittenLoss = Callable[[nn.Module, Batch], tuple[Tensor, float]]
"""The summed loss of a minibatch, and what the sum of gradients is divided by."""


def serial(
    run: Run,
    batches: Iterator[list[Batch]],
    reduction: str,
    written: WrittenLoss | None = None,
    after_step: Callable[[nn.Module], None] = lambda _: None,
) -> Tensor:
    """Plain PyTorch on one process: autograd and torch.optim, a list of minibatches a step.

    `mean`: the loss is the mean over the step. `sum`: gradients of sums, one minibatch after the other, divided once.
    Batch norm sees one minibatch at a time. Returns the parameters in the run's layout, (P,).

    written: the loss; by default the spec's, of images and labels. after_step: sees the model after each step.
    """
    spec = run.spec
    written = written or (lambda model, batch: (written_loss(spec, model(batch.images), batch.labels), len(batch)))
    model = run.model()
    if run.layout.channels_last:
        model = model.to(memory_format=torch.channels_last)
    draws = replace_dropout(model, spec.seed)
    schedule = spec.learning_rate(run.dataset.num_train)
    optimizer = torch_optimizer(spec, model)
    seen = 0
    for step in batches:
        examples = sum(len(batch) for batch in step)
        optimizer.zero_grad()
        losses, weight = [], 0.0
        for rank, batch in enumerate(step):
            draws.set(batch.epoch, batch.examples)
            torch.manual_seed(hash((spec.seed, batch.epoch, int(batch.examples[0]), rank)) & (2**63 - 1))
            loss, of_batch = written(model, batch)
            losses.append(loss)
            weight += of_batch
        for loss in losses:
            (loss / weight if reduction == "mean" else loss).backward()
        if reduction == "sum":
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad /= weight
        if spec.clip is not None:
            clip_as_torch(spec.clip, model)
        for group in optimizer.param_groups:
            own = group.get("schedule")
            share = own.course(spec.run_length(run.dataset.num_train))(seen) if own else 1.0
            group["lr"] = group["scaled"] * share if own else schedule(seen) * group.get("rate", 1.0)
        optimizer.step()
        after_step(model)
        seen += examples
    return run.layout.flatten({name: p.detach() for name, p in model.named_parameters()})


def clip_as_torch(clip: ClipSpec, model: nn.Module) -> None:
    """What a user of torch calls between `backward` and `step`."""
    if clip.norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip.norm)
    else:
        nn.utils.clip_grad_value_(model.parameters(), clip.value)


def written_loss(spec: TrainSpec, logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of a spec's losses, computed by torch's own functions."""
    if spec.loss == "logistic":
        targets = F.one_hot(labels, logits.shape[1]).float()
        return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return F.cross_entropy(logits, labels, reduction="sum")


HALVED = {"name": "step", "epochs": [0.6], "factor": 0.5}

RECIPES = {
    "linear, gradual, equation 10": {
        "batch": {"per_worker": 7, "base": 3},
        "scaling": "linear",
        "warmup": {"name": "gradual", "epochs": 0.7},
        "schedule": "krizhevsky",
        "optimizer": {"name": "momentum", "lr": 0.004, "weight_decay": 0.01, "equation": 10},
    },
    "sqrt, constant, exact decay, equation 10 uncorrected": {
        "batch": {"per_worker": 7, "base": 4},
        "scaling": {"name": "sqrt", "weight_decay": "exact"},
        "warmup": {"name": "constant", "epochs": 0.5},
        "schedule": {"name": "step", "epochs": [1, 1.5], "factor": 0.3},
        "optimizer": {
            "name": "momentum", "lr": 0.01, "weight_decay": 0.01, "equation": 10, "momentum_correction": False,
            "no_decay": ["batch_norm", "biases"],
        },
    },
    "sqrt, TensorFlow's RMSProp, polynomial": {
        "batch": {"per_worker": 7, "base": 5},
        "scaling": {"name": "sqrt", "weight_decay": "sqrt"},
        "warmup": {"name": "gradual", "epochs": 1},
        "schedule": "polynomial",
        "optimizer": {
            "name": "rmsprop", "form": "tensorflow", "lr": 0.02, "decay": 0.9, "epsilon": 1.0, "weight_decay": 0.01,
            "no_decay": [],
        },
    },
    "groups of parameters": {
        "batch": {"per_worker": 7, "base": 3},
        "scaling": {"name": "sqrt", "weight_decay": "exact"},
        "schedule": "cosine",
        "optimizer": {
            "name": "momentum", "lr": 0.01, "weight_decay": 0.01, "equation": 10,
            "momentum_correction": False,
            "groups": [
                {"match": ["norm.bias", "backbone.1.bias"], "frozen": True},
                {"match": "*.bias", "lr": 0.02, "momentum": 0.5, "schedule": HALVED},
                {"match": ["conv*", "*1.weight"], "lr": 0.004, "weight_decay": 0.1},
            ],
        },
    },
}  # fmt: skip
"""Specs with every option of the recipe, for runs of 2 epochs."""


def step_batches(run: Run) -> Iterator[list[Batch]]:
    """The minibatches of each synchronous step, all virtual workers'."""
    ranks = range(run.order.num_virtual)
    for work in synchronous(run.dataset, run.order, ranks, run.spec.epochs):
        yield [minibatch.batch for minibatch in work.minibatches if minibatch.batch is not None]
