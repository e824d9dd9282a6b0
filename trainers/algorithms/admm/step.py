"""ADMM SGD: workers update parameters of their own, and average them.

Sources: paper 2, section 5.1.2, algorithm 3 (`averaging`), which is called ADMM there but has no rho, z or u; and
Boyd et al. 2011, "Distributed optimization and statistical learning via the alternating direction method of
multipliers", section 7.1 (`consensus`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trainers.algorithms.admm.config import RHO, STEPS, AdmmConfig, Z, agent_names
from trainers.algorithms.base import Algorithm, Context, Minibatch, StepReport, Work
from trainers.algorithms.config import names_of_ranks
from trainers.collectives.average import Average, gather_rows
from trainers.collectives.reduction_tree import block
from trainers.models.objective import Total
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import Gradient, TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span


class AveragingAdmm(Algorithm):
    """Algorithm 3 of paper 2: fetch the parameters, make one SGD step on an own minibatch, average; every minibatch.

    The optimizer state is averaged with the parameters, so that momentum continues from the gradients of all workers.
    The average weights each worker by the examples of its minibatch.
    """

    def __init__(self, context: Context) -> None:
        assert context.collectives is not None
        self.context, self.replica = context, context.replica
        self.names = context.optimizer.state_names
        self.numel = context.replica.layout.numel
        start = context.start.buffers
        first = start.params.new_empty(1 + len(self.names), self.numel)  # parameters, then each state
        for row, vector in zip(first, [start.params, *(start.state[name] for name in self.names)], strict=True):
            row.copy_(vector)
        self.average = Average(context.collectives, context.num_virtual, first.numel())
        self.average.begin(first.flatten())
        self.gradient = self.average.newest.new_zeros(self.numel)
        device = self.gradient.device
        self.limit = NormLimit(context.optimizer)
        self.update = SliceUpdate(context.optimizer, self.numel, device)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate

    def step(self, work: Work) -> StepReport:
        fetched, lr, totals = self.gather_state(), self.context.schedule(self.examples), []
        correction = momentum_correction(self.learning_rate, lr)
        contribution = Contribution(TensorGradient(self.gradient), 1, lr, correction=correction, seen=self.examples)
        batches = {minibatch.virtual_rank: minibatch.batch for minibatch in work.minibatches}

        def stepped(rank: int, into: Tensor) -> None:
            """(parameters - alpha gradient) times the examples of the minibatch, the worker's weight in the average."""
            batch = batches[rank]
            if batch is None:
                into.zero_()
                return
            totals.append(self.replica.gradient(fetched.params, batch, self.gradient, mean=True, virtual_rank=rank))
            clipped = replace(contribution, scale=self.limit.of(self.gradient))
            self.update.apply([clipped], fetched, self._version(into))
            into.mul_(len(batch))

        with span("average"):
            self.average.update(stepped, work.total_examples)
        self.examples += work.total_examples
        self.learning_rate = lr
        return StepReport(sum(totals, Total()), work.examples, lr, norms=self.limit.taken())

    def gather_state(self) -> Buffers:
        return self._version(self.average.newest)

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _version(self, rows: Tensor) -> Buffers:
        """Views of parameters and optimizer state in one vector."""
        params, *states = rows.view(-1, self.numel)
        return Buffers(params, dict(zip(self.names, states, strict=True)))


@dataclass(frozen=True)
class Agent:
    """One virtual worker of consensus ADMM; each vector (P,)."""

    x: Tensor
    u: Tensor
    state: dict[str, Tensor]
    """Optimizer state of the x-update."""
    examples: int
    """Examples in its partition."""


@dataclass(frozen=True)
class Penalised:
    """The gradient of f(x) + (rho/2) ||x - z + u||^2 with respect to x; a `Gradient`."""

    gradient: Tensor
    agent: Agent
    z: Tensor
    rho: float

    def piece(self, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        a, cut = self.agent, slice(start, stop)
        if not self.z.is_cuda:
            from trainers.algorithms.admm import kernel

            into = self.z.new_empty(stop - start) if out is None else out
            vectors = (self.gradient[cut], a.x[cut], self.z[cut], a.u[cut], into)
            kernel.penalised(*(vector.numpy() for vector in vectors), np.float32(self.rho))
            return into
        return torch.sub(a.x[cut], self.z[cut], out=out).add_(a.u[cut]).mul_(self.rho).add_(self.gradient[cut])

    @property
    def pull(self) -> float:
        return self.rho

    def where_it_lies(self, start: int, stop: int) -> Sequence[Tensor]:
        return [vector[start:stop] for vector in (self.gradient, self.z, self.agent.u)]


class ConsensusAdmm(Algorithm):
    """Consensus ADMM in its scaled form (Boyd et al. 2011, section 7.1).

    x_i <- argmin f_i(x) + (rho/2) ||x - z + u_i||^2, approached by H SGD steps on minibatches of partition i
    z   <- mean of x_i + u_i
    u_i <- u_i + x_i - z

    f_i is the mean loss over partition i. The mean weights each worker by the examples N_i of its partition, which is
    ADMM with the penalty N_i rho for the sum of the N_i f_i: its optimum is that of all examples together. z is
    evaluated and exported, and between two updates what it would become now, from which no worker continues; each
    virtual worker has its own x, u and optimizer state.
    """

    def __init__(self, config: AdmmConfig, context: Context) -> None:
        assert context.collectives is not None
        self.rho = RHO if config.rho is None else config.rho
        self.num_steps = STEPS if config.steps is None else config.steps
        self.context, self.replica = context, context.replica
        self.average = Average(context.collectives, context.num_virtual, context.replica.layout.numel)
        start = context.start.buffers
        self.average.begin(start.state.get(Z, start.params))
        self.moved = Z in start.state  # whether an x-update is under way
        collectives, z = self.average.collectives, self.average.newest
        self.names = agent_names(context.optimizer.state_names)
        self.ranks = range(*block(context.num_virtual, collectives.rank, collectives.size))
        self.own = z.new_zeros(len(self.ranks), len(self.names), z.numel())
        self.agents = dict(zip(self.ranks, map(self._agent, self.ranks, self.own), strict=True))
        self.gradient = z.new_zeros(z.numel())
        self.limit = NormLimit(context.optimizer)
        self.update = SliceUpdate(context.optimizer, z.numel(), z.device)
        self.examples, self.learning_rate = context.start.examples, context.start.learning_rate

    def step(self, work: Work) -> StepReport:
        lr, first = self.context.schedule(self.examples), work.minibatches[0]
        total = sum((self._x_step(minibatch, lr) for minibatch in work.minibatches), Total())
        self.examples += work.total_examples
        self.learning_rate, self.moved = lr, True
        step = (first.index - first.virtual_rank) // self.context.num_virtual
        if (step + 1) % self.num_steps == 0 or work.ends_epoch:
            with span("consensus"):
                self._update_consensus()
        return StepReport(total, work.examples, lr, norms=self.limit.taken())

    def gather_state(self) -> Buffers:
        """z, or what it would become now; on worker 0 also z itself then, the vectors of all virtual workers, and the
        mean of their optimizer states, from which another algorithm can resume."""
        collectives, z, num_virtual = self.average.collectives, self.average.newest, self.context.num_virtual
        params = self.average.now(self._weigh, sum(self.context.partition_sizes)).clone() if self.moved else z
        rows = gather_rows(collectives, num_virtual, self.own.flatten(1))
        if collectives.rank:
            return Buffers(params, {})
        names = names_of_ranks(self.names, num_virtual)
        private = dict(zip(names, rows.view(-1, z.numel()), strict=True)) | ({Z: z} if self.moved else {})
        means = rows.view(-1, len(self.names), z.numel()).mean(0)  # (names, P)
        return Buffers(params, private | dict(zip(self.names[2:], means[2:], strict=True)))

    def finish(self) -> None:
        self.average.collectives.barrier().wait()

    def _agent(self, rank: int, rows: Tensor) -> Agent:
        """A virtual worker from the checkpoint; or x = z, u = 0 and the optimizer state of another algorithm's
        checkpoint."""
        found = self.context.start.buffers.state
        x, u, *states = rows
        for name, row in zip(self.names, rows, strict=True):
            if f"{name}-{rank}" in found:
                row.copy_(found[f"{name}-{rank}"])
            elif name == "x":
                row.copy_(self.average.newest)
            elif name in found:
                row.copy_(found[name])
        return Agent(x, u, dict(zip(self.names[2:], states, strict=True)), self.context.partition_sizes[rank])

    def _x_step(self, minibatch: Minibatch, lr: float) -> Total:
        """x <- x - lr (gradient of f on the minibatch + rho (x - z + u)), or by another update rule of the spec."""
        batch, agent = minibatch.batch, self.agents[minibatch.virtual_rank]
        if batch is None:
            return Total()
        total = self.replica.gradient(agent.x, batch, self.gradient, mean=True, virtual_rank=minibatch.virtual_rank)
        penalised: Gradient = Penalised(self.gradient, agent, self.average.newest, self.rho)
        version = Buffers(agent.x, agent.state)
        correction = momentum_correction(self.learning_rate, lr)
        scale = 1.0 if self.limit.norm is None else self.limit.of(penalised.piece(0, agent.x.numel()))
        contribution = Contribution(penalised, 1, lr, correction=correction, seen=self.examples, scale=scale)
        self.update.apply([contribution], version, version)
        return total

    def _update_consensus(self) -> None:
        """z <- mean of x_i + u_i; u_i <- u_i + x_i - z."""
        self.average.update(self._weigh, sum(self.context.partition_sizes))
        for agent in self.agents.values():
            _follow(agent, self.average.newest)
        self.moved = False

    def _weigh(self, rank: int, into: Tensor) -> None:
        """What a virtual worker adds to the sum of which z is the mean; (P,)."""
        _weigh(self.agents[rank], into)


def _weigh(agent: Agent, into: Tensor) -> None:
    """into <- N_i (x_i + u_i), (P,)."""
    if into.is_cuda:
        torch.add(agent.x, agent.u, out=into).mul_(agent.examples)
    else:
        from trainers.algorithms.admm import kernel

        kernel.weighted(*(vector.numpy() for vector in (agent.x, agent.u, into)), np.float32(agent.examples))


def _follow(agent: Agent, z: Tensor) -> None:
    """u_i <- u_i + x_i - z, each (P,)."""
    if z.is_cuda:
        agent.u.add_(agent.x - z)
    else:
        from trainers.algorithms.admm import kernel

        kernel.follow(*(vector.numpy() for vector in (agent.u, agent.x, z)))
