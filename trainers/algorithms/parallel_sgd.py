"""ParallelSGD: each worker runs SGD by itself on its own examples, and every so often all parameters are averaged.

Sources: paper 2, section 5.1.1, algorithms 1 and 2; Zinkevich et al. 2010, "Parallelized stochastic gradient descent"
(one average); Stich 2019, "Local SGD converges fast and communicates little" (one every H steps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, Minibatch, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.data.partition import Partitioning
    from trainers.optim.update import Buffers

SAMPLES = 64


class ParallelSgdConfig(AlgorithmConfig):
    """Each worker runs SGD by itself on the examples that it holds; parameters are averaged every so often, and
    examples are shuffled between workers before each round. A round is an epoch: all train what they hold once."""

    source: ClassVar[str] = "paper 2 (5.1.1, algorithms 1 and 2), Zinkevich et al. 2010, Stich 2019"

    name: Literal["parallel_sgd"] = "parallel_sgd"
    """The word in a spec."""

    average_every: Literal["round"] | Annotated[int, Field(ge=1, le=1_000_000)] = "round"
    """Steps H between two averages of parameters and optimiser state, which are also made at the end of each round;
    `round`: only there."""

    start: Literal["dealt", "sorted"] = "dealt"
    """Who holds which examples before the first shuffle. `dealt`: at random; `sorted`: sorted by label and cut, as data
    lies that was collected class by class."""

    shuffle: Literal["none", "exchange", "full"] = "full"
    """What happens before each round, the first included. `full`: ShuffleSGD, after which every worker has the labels
    of the whole; `exchange`: workers exchange half of their examples in pairs, others in each round; `none`."""

    samples: int | None = Field(default=None, ge=1, le=1_000_000)
    """Full shuffle: labels d that each worker tells the others to settle the bins; null: 64."""

    @field_validator("average_every", mode="before")
    @classmethod
    def _is_steps_or_round(cls, value: Any) -> Any:
        if value != "round" and (type(value) is not int or not 1 <= value <= 1_000_000):
            raise ValueError("give a number of steps from 1 to 1000000, or round")
        return value

    @field_validator("samples")
    @classmethod
    def _are_taken(cls, samples: int | None, info: ValidationInfo) -> int | None:
        if samples is not None and info.data.get("shuffle") != "full":
            raise ValueError("only a full shuffle takes samples; leave it out, or set shuffle to full")
        return samples

    @property
    def uses_parameter_server(self) -> bool:
        return False

    @property
    def is_synchronous(self) -> bool:
        return True

    @property
    def holds_examples(self) -> bool:
        return True

    def partitioning(self, seed: int, shares: tuple[int, ...]) -> Partitioning:
        from trainers.data.partition import Partitioning
        from trainers.data.shuffle import Shuffle

        return Partitioning(self.start, Shuffle(self.shuffle, self.samples or SAMPLES, seed, shares))

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        return tuple(f"{name}-{rank}" for rank in range(num_virtual) for name in ("x", *rule))

    def build(self, context: Context) -> Algorithm:
        return ParallelSgd(self, context)


class ParallelSgd:
    """Algorithm 1 of paper 2, again and again.

    The shuffle (line 2) is the dataset's: it has taken place when a round's first minibatch is here. Each virtual
    worker makes its SGD steps on parameters x and a rule's state of its own (line 4); then these become the mean of all
    (line 5), where a worker counts by the examples it has trained since the last one: the report's 1/k if all have
    trained equally many. In the middle of a round `whole` is that mean too, but nobody goes on from it.
    """

    def __init__(self, config: ParallelSgdConfig, context: Context) -> None:
        from trainers.optim.update import SliceUpdate
        from trainers.transport.average import Average
        from trainers.transport.canonical import block

        assert context.collectives is not None
        self.config, self.context, self.replica = config, context, context.replica
        self.names = ("x", *context.rule.state_names)
        self.numel = context.replica.layout.numel
        start = context.start.whole
        first = start.params.new_empty(len(self.names), self.numel)  # x, then each state
        for row, vector in zip(first, [start.params, *(start.state[n] for n in self.names[1:])], strict=True):
            row.copy_(vector)
        self.average = Average(context.collectives, context.num_virtual, first.numel())
        self.average.begin(first.flatten())
        device, collectives = self.average.newest.device, context.collectives
        ranks = range(*block(context.num_virtual, collectives.rank, collectives.size))
        self.own = self.average.newest.new_zeros(len(ranks), first.numel())
        self.rows = dict(zip(ranks, self.own, strict=True))
        self.gradient = self.own.new_zeros(self.numel)
        self.update = SliceUpdate(context.rule, context.weight_decay, self.numel, device, context.exempt)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate
        self.trained: dict[int, int] = {}  # virtual worker -> examples since the last average, where any were
        self.all_trained = 0
        self.apart = any(name in start.state for name in config.private_names(context.rule.state_names, 1))
        self._take_up()

    def step(self, work: Work) -> StepReport:
        lr = self.context.schedule(self.examples)
        loss = sum(self._sgd(minibatch, lr) for minibatch in work.minibatches)
        self.examples += work.whole
        self.learning_rate = lr
        steps = self._count(work)
        if work.ends_epoch or steps == self.config.average_every:
            self._make_average()
            self.own.copy_(self.average.newest.expand_as(self.own))
            self.trained, self.apart = {}, False
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        """The mean; between two of them also, on worker 0, x and state of each virtual worker."""
        from trainers.optim.update import Buffers
        from trainers.transport.average import gather_rows

        if self.trained:
            self._make_average()
        mean = self._version(self.average.newest)
        if not self.apart:
            return mean
        num_virtual = self.context.num_virtual
        rows = gather_rows(self.average.collectives, num_virtual, self.own).view(-1, self.numel)
        names = self.config.private_names(self.names[1:], num_virtual)
        return Buffers(mean.params, mean.state | dict(zip(names, rows, strict=len(rows) > 0)))

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _take_up(self) -> None:
        """Each virtual worker as the checkpoint left it within a round, or as all of them together."""
        start = self.context.start.whole
        for rank, row in self.rows.items():
            version = self._version(row)
            version.params.copy_(start.state.get(f"x-{rank}", start.params))
            for name, vector in version.state.items():
                vector.copy_(start.state.get(f"{name}-{rank}", start.state[name]))

    def _sgd(self, minibatch: Minibatch, lr: float) -> float:
        """One step of one virtual worker, on the mean gradient of its minibatch."""
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Contribution, Whole

        batch, rank = minibatch.batch, minibatch.virtual_rank
        if batch is None:
            return 0.0
        version = self._version(self.rows[rank])
        loss = self.replica.gradient(version.params, batch, self.gradient, 1 / len(batch), rank)
        correction = momentum_correction(self.learning_rate, lr)
        self.update.apply([Contribution(Whole(self.gradient), 1, lr, correction=correction)], version, version)
        return loss

    def _count(self, work: Work) -> int:
        """Steps since the last average, this one included. The minibatches before the last step of an epoch are whole,
        so that what each worker has trained need not be kept in a checkpoint."""
        first, n, num_virtual = work.minibatches[0], self.context.per_worker, self.context.num_virtual
        step = (first.index - first.virtual_rank) // num_virtual
        before = step if self.config.average_every == "round" else step % self.config.average_every
        self.trained = {m.virtual_rank: before * n + (len(m.batch) if m.batch else 0) for m in work.minibatches}
        self.all_trained, self.apart = before * n * num_virtual + work.whole, True
        return before + 1

    def _make_average(self) -> None:
        def weighted(rank: int, into: Tensor) -> None:
            into.copy_(self.rows[rank]).mul_(self.trained[rank])

        self.average.update(weighted, self.all_trained)

    def _version(self, rows: Tensor) -> Buffers:
        """x and state as parts of one vector."""
        from trainers.optim.update import Buffers

        params, *states = rows.view(-1, self.numel)
        return Buffers(params, dict(zip(self.names[1:], states, strict=True)))
