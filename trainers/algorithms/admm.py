"""ADMM SGD: workers update parameters of their own, and agree on their average.

Sources: paper 2, section 5.1.2, algorithm 3 (`averaging`), which bears the name of ADMM but has no rho, z or u; and
Boyd et al. 2011, "Distributed optimization and statistical learning via the alternating direction method of
multipliers", section 7.1 (`consensus`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, Minibatch, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor

    from trainers.optim.update import Buffers, Gradient

RHO = 0.1
STEPS = 10


class AdmmConfig(AlgorithmConfig):
    """Workers update parameters of their own and average them: every minibatch, or as consensus ADMM."""

    source: ClassVar[str] = "paper 2 (5.1.2, algorithm 3), Boyd et al. 2011 (7.1)"

    name: Literal["admm"] = "admm"
    """The word in a spec."""

    form: Literal["averaging", "consensus"] = "averaging"
    """`averaging`: paper 2's algorithm 3, one SGD step a worker, then the average of all parameters, every minibatch;
    it has no rho, z or u. `consensus`: the alternating direction method of multipliers, each worker on a part of the
    examples that it keeps for the whole run."""

    rho: float | None = Field(default=None, gt=0, le=1000)
    """Consensus: the weight of the penalty (rho/2) ||x - z + u||^2 that draws the workers together; null: 0.1.
    The learning rate times rho must stay well below 1."""

    steps: int | None = Field(default=None, ge=1, le=1_000_000)
    """Consensus: minibatches H in an x-update, between two updates of z and u, which are also made at the end of each
    epoch; null: 10."""

    @field_validator("rho", "steps")
    @classmethod
    def _is_consensus(cls, value: float | None, info: ValidationInfo) -> float | None:
        if info.data.get("form") == "averaging" and value is not None:
            raise ValueError(f"averaging has no {info.field_name}; leave it out, or set form to consensus")
        return value

    @property
    def uses_parameter_server(self) -> bool:
        return False

    @property
    def is_synchronous(self) -> bool:
        return True

    @property
    def keeps_partitions(self) -> bool:
        return self.form == "consensus"

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        if self.form == "averaging":
            return ()
        return tuple(f"{name}-{rank}" for rank in range(num_virtual) for name in agent_names(rule))

    def build(self, context: Context) -> Algorithm:
        return AveragingAdmm(context) if self.form == "averaging" else ConsensusAdmm(self, context)


def agent_names(rule: tuple[str, ...]) -> tuple[str, ...]:
    """The vectors of one virtual worker in consensus ADMM."""
    return ("x", "u", *rule)


class AveragingAdmm:
    """Algorithm 3 of paper 2: fetch the parameters, one SGD step on a minibatch of one's own, average; every minibatch.

    The rule's state is averaged with the parameters, so that momentum goes on from what all have seen. An average
    counts each worker by the examples of its minibatch.
    """

    def __init__(self, context: Context) -> None:
        from trainers.optim.update import SliceUpdate
        from trainers.transport.average import Average

        assert context.collectives is not None
        self.context, self.replica = context, context.replica
        self.names = context.rule.state_names
        self.numel = context.replica.layout.numel
        start = context.start.whole
        first = start.params.new_empty(1 + len(self.names), self.numel)  # parameters, then each state
        for row, vector in zip(first, [start.params, *(start.state[name] for name in self.names)], strict=True):
            row.copy_(vector)
        self.average = Average(context.collectives, context.num_virtual, first.numel())
        self.average.begin(first.flatten())
        self.gradient = self.average.newest.new_zeros(self.numel)
        device = self.gradient.device
        self.update = SliceUpdate(context.rule, context.weight_decay, self.numel, device, context.exempt)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate

    def step(self, work: Work) -> StepReport:
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Contribution, Whole

        fetched, lr, losses = self.whole(), self.context.schedule(self.examples), []
        contribution = Contribution(
            Whole(self.gradient), divisor=1, lr=lr, correction=momentum_correction(self.learning_rate, lr)
        )
        batches = {minibatch.virtual_rank: minibatch.batch for minibatch in work.minibatches}

        def stepped(rank: int, into: Tensor) -> None:
            """Parameters <- parameters - alpha gradient, times the examples that they count for."""
            batch = batches[rank]
            if batch is None:
                into.zero_()
                return
            losses.append(self.replica.gradient(fetched.params, batch, self.gradient, 1 / len(batch), rank))
            self.update.apply([contribution], fetched, self._version(into))
            into.mul_(len(batch))

        self.average.update(stepped, work.whole)
        self.examples += work.whole
        self.learning_rate = lr
        return StepReport(sum(losses), work.examples, lr)

    def whole(self) -> Buffers:
        return self._version(self.average.newest)

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _version(self, rows: Tensor) -> Buffers:
        from trainers.optim.update import Buffers

        params, *states = rows.view(-1, self.numel)
        return Buffers(params, dict(zip(self.names, states, strict=True)))


@dataclass(frozen=True)
class Agent:
    """One virtual worker of consensus ADMM; each vector (P,)."""

    x: Tensor
    u: Tensor
    state: dict[str, Tensor]
    """Of the rule that makes the steps of the x-update."""
    examples: int
    """In its partition."""


@dataclass(frozen=True)
class Penalised:
    """The gradient of f(x) + (rho/2) ||x - z + u||^2 with respect to x; a `Gradient`."""

    gradient: Tensor
    agent: Agent
    z: Tensor
    rho: float

    def piece(self, start: int, stop: int) -> Tensor:
        a, cut = self.agent, slice(start, stop)
        return (a.x[cut] - self.z[cut]).add_(a.u[cut]).mul_(self.rho).add_(self.gradient[cut])


class ConsensusAdmm:
    """Consensus ADMM in its scaled form (Boyd et al. 2011, section 7.1).

    x_i <- argmin f_i(x) + (rho/2) ||x - z + u_i||^2, approached by H SGD steps on minibatches of partition i
    z   <- mean of x_i + u_i
    u_i <- u_i + x_i - z

    f_i is the mean loss over partition i. A worker counts in the mean by the examples N_i of its partition, which is
    ADMM with the penalty N_i rho for the sum of the N_i f_i: its optimum is that of all examples together. z is what is
    evaluated and handed on; x, u and the state of the rule are each virtual worker's own.
    """

    def __init__(self, config: AdmmConfig, context: Context) -> None:
        from trainers.optim.update import SliceUpdate
        from trainers.transport.average import Average
        from trainers.transport.canonical import block

        assert context.collectives is not None
        self.rho = RHO if config.rho is None else config.rho
        self.num_steps = STEPS if config.steps is None else config.steps
        self.config, self.context, self.replica = config, context, context.replica
        self.average = Average(context.collectives, context.num_virtual, context.replica.layout.numel)
        self.average.begin(context.start.whole.params)
        collectives, z = self.average.collectives, self.average.newest
        self.names = agent_names(context.rule.state_names)
        self.ranks = range(*block(context.num_virtual, collectives.rank, collectives.size))
        self.own = z.new_zeros(len(self.ranks), len(self.names), z.numel())
        self.agents = dict(zip(self.ranks, map(self._agent, self.ranks, self.own), strict=True))
        self.gradient = z.new_zeros(z.numel())
        self.update = SliceUpdate(context.rule, context.weight_decay, z.numel(), z.device, context.exempt)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate

    def step(self, work: Work) -> StepReport:
        lr, first = self.context.schedule(self.examples), work.minibatches[0]
        loss = sum(self._x_step(minibatch, lr) for minibatch in work.minibatches)
        self.examples += work.whole
        self.learning_rate = lr
        step = (first.index - first.virtual_rank) // self.context.num_virtual
        if (step + 1) % self.num_steps == 0 or work.ends_epoch:
            self._agree()
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        """z, and on rank 0 the vectors of all virtual workers and the mean of their rule's states, with which another
        algorithm goes on."""
        from trainers.optim.update import Buffers
        from trainers.transport.average import gather_rows

        collectives, z, num_virtual = self.average.collectives, self.average.newest, self.context.num_virtual
        rows = gather_rows(collectives, num_virtual, self.own.flatten(1))
        if collectives.rank:
            return Buffers(z, {})
        names = self.config.private_names(self.context.rule.state_names, num_virtual)
        private = dict(zip(names, rows.view(-1, z.numel()), strict=True))
        means = rows.view(-1, len(self.names), z.numel()).mean(0)  # (names, P)
        return Buffers(z, private | dict(zip(self.names[2:], means[2:], strict=True)))

    def newest(self, before: int = 0) -> None:
        return None

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _agent(self, rank: int, rows: Tensor) -> Agent:
        """As the checkpoint left it, or with x = z, u = 0 and the rule's state as another algorithm left it."""
        found = self.context.start.whole.state
        x, u, *states = rows
        for name, row in zip(self.names, rows, strict=True):
            if f"{name}-{rank}" in found:
                row.copy_(found[f"{name}-{rank}"])
            elif name == "x":
                row.copy_(self.average.newest)
            elif name in found:
                row.copy_(found[name])
        return Agent(x, u, dict(zip(self.names[2:], states, strict=True)), self.context.shares[rank])

    def _x_step(self, minibatch: Minibatch, lr: float) -> float:
        """x <- x - lr (gradient of f on the minibatch + rho (x - z + u)), or as the spec's rule has it."""
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Buffers, Contribution

        batch, agent = minibatch.batch, self.agents[minibatch.virtual_rank]
        if batch is None:
            return 0.0
        loss = self.replica.gradient(agent.x, batch, self.gradient, 1 / len(batch), minibatch.virtual_rank)
        towards: Gradient = Penalised(self.gradient, agent, self.average.newest, self.rho)
        version = Buffers(agent.x, agent.state)
        correction = momentum_correction(self.learning_rate, lr)
        self.update.apply([Contribution(towards, 1, lr, correction=correction)], version, version)
        return loss

    def _agree(self) -> None:
        """z <- mean of x_i + u_i; u_i <- u_i + x_i - z."""

        def weighted(rank: int, into: Tensor) -> None:
            agent = self.agents[rank]
            into.copy_(agent.x).add_(agent.u).mul_(agent.examples)

        self.average.update(weighted, sum(self.context.shares))
        for agent in self.agents.values():
            agent.u.add_(agent.x - self.average.newest)
