"""Streaming DiLoCo: fragments of the model take turns, and the sum of one travels while the workers train on.

Source: Douillard et al. 2025, "Streaming DiLoCo with overlapping communication: towards a distributed free lunch",
algorithm 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.diloco.config import ARRIVING, START, DilocoConfig
from trainers.algorithms.diloco.outer import OuterStep
from trainers.algorithms.diloco.turns import Turns
from trainers.algorithms.local_steps import LocalSteps
from trainers.collectives.beside.average import AverageBeside
from trainers.collectives.lossy.compressed_beside import CompressedSumBeside
from trainers.links.handle import Handle, done
from trainers.optim.buffers import Buffers
from trainers.spans import span


class StreamingDiloco(Algorithm):
    """Algorithm 2 of the paper. After each step of all workers i, with p a fragment and t_p the turn of it:

    t - t_p = 0 mod H:          d_p <- mean of theta_p - theta_{i,p} leaves (lines 6 to 9)
    t - t_p - delay = 0 mod H:  d_p is waited for; theta_p <- outer optimizer (theta_p, d_p);
                                theta_{i,p} <- alpha theta_{i,p} + (1 - alpha) theta_p (lines 10 to 14)

    t counts the steps of an epoch. Its end ends all rounds: what travels is waited for, and the other fragments leave
    and are waited for. theta is one for all workers; the paper writes it with the index of a worker, which makes a
    difference where alpha is not 0. The mean weights workers by the examples of the round, as in `Diloco`.

    A snapshot waits for what travels, keeps it as it came, and leaves it to its step. Its parameters are those that
    outer steps would make now: of what travels, or else of what workers have changed since they took theta.

    With `compress` a worker sends a part of its share of d_p, keeps the rest, and adds it when p leaves again.
    """

    def __init__(self, config: DilocoConfig, context: Context) -> None:
        assert context.collectives is not None
        self.collectives = context.collectives
        self.turns, self.alpha = Turns(config.average_every, config.fragments, config.delay), config.own_share
        self.parts = context.replica.layout.fragments(config.fragments)
        start, device = context.start.buffers, self.collectives.device
        self.outer = OuterStep(config.outer, start, device)
        self.local = LocalSteps(context, lambda _: config.average_every, device)
        self.average = AverageBeside(self.collectives, context.num_virtual)
        self.sum = context.compressed_beside(self.average.lane)
        self.travelling: dict[int, Handle[Tensor]] = {}  # by fragment
        self.settled = set(range(len(self.parts)))  # fragments of which all took theta after the last step
        self.work: Work | None = None  # of the last step
        self.resumed = Buffers(start.params.to(device, copy=True), {})  # what there is before the first one
        if ARRIVING in start.state:
            self.resumed.state[ARRIVING] = start.state[ARRIVING].to(device, copy=True)

    def step(self, work: Work) -> StepReport:
        if self.work is None:
            self._take_up(self.local.steps_of(work))
        report, self.work = self.local.step(work), work
        step, fragments = self.local.steps_of(work) + 1, range(len(self.parts))
        self.settled = set()
        for p in fragments:
            if self.turns.leaves(p, step) or (work.ends_epoch and p not in self.travelling):
                self.travelling[p] = self._mean(p) if self.sum is None else self._sent(self.sum, p)
        arriving = [p for p in fragments if work.ends_epoch or self.turns.arrives(p, step)]
        if arriving:
            with span("average"):
                for p in arriving:
                    self._mix(p)
        return report

    def gather_state(self) -> Buffers:
        """Parameters; on worker 0 also what `Diloco` gathers, and what travels."""
        if self.work is None:
            params, arriving = self.resumed.params, self.resumed.state.get(ARRIVING)
            apart = self.local.diverged
        else:
            params, arriving = self._would_be()
            apart = self.alpha > 0 or len(self.settled) < len(self.parts)
        kept = {} if self.sum is None else self.sum.gather()
        state = self.local.gather_with_means(apart)
        if not state:
            return Buffers(params, {})
        state |= kept | self.outer.state
        if apart:
            state[START] = self.outer.theta
        if arriving is not None:
            state[ARRIVING] = arriving
        return Buffers(params, state)

    def finish(self) -> None:
        for handle in self.travelling.values():
            handle.wait()
        self.collectives.barrier().wait()

    def _mean(self, p: int) -> Handle[Tensor]:
        """Begin the mean over the workers of what they have changed of a fragment, (n,)."""
        assert self.work is not None
        part = self.parts[p]
        steps = self.turns.steps(p, self.local.steps_of(self.work) + 1)
        trained, all_trained = self.local.examples_of(self.work, steps)

        def weighted(rank: int, into: Tensor) -> None:
            self.outer.changed(self.local.versions[rank].params[part], into, part).mul_(trained[rank])

        return self.average.begin(part.stop - part.start, weighted, all_trained)

    def _sent(self, summed: CompressedSumBeside, p: int) -> Handle[Tensor]:
        """Begin the sum of what workers send of their shares of that, and of what they have kept of it."""
        assert self.work is not None
        part, theta = self.parts[p], self.outer.theta
        steps = self.turns.steps(p, self.local.steps_of(self.work) + 1)
        trained, all_trained = self.local.examples_of(self.work, steps)
        shares = [torch.empty_like(theta) for _ in self.local.ranks]  # of which only the part is read
        for (rank, version), share in zip(self.local.versions.items(), shares, strict=True):
            torch.sub(theta[part], version.params[part], out=share[part]).mul_(trained[rank] / all_trained)
        handle = summed.begin(shares, part)
        return Handle(lambda: theta[part] - handle.wait()) if self.outer.config.is_none else handle

    def _mix(self, p: int) -> None:
        """The sum of a fragment has come: one outer step, of which all take their share."""
        part = self.parts[p]
        theta, mine = self.outer.take(self.travelling.pop(p).wait(), part), self.local.own[:, 0, part]
        if self.alpha:
            mine.mul_(self.alpha).add_(theta, alpha=1 - self.alpha)
        else:
            mine.copy_(theta.expand_as(mine))
        self.settled.add(p)

    def _would_be(self) -> tuple[Tensor, Tensor | None]:
        """(P,) the parameters of a snapshot, and what travels, if anything does."""
        params, arriving = self.outer.theta.clone(), None
        fresh = {p: self._mean(p) for p in range(len(self.parts)) if p not in self.travelling.keys() | self.settled}
        for p, handle in (self.travelling | fresh).items():
            part, d = self.parts[p], handle.wait()
            params[part], _ = self.outer.after(d, part)
            if p in self.travelling:
                arriving = params.new_zeros(len(params)) if arriving is None else arriving
                arriving[part] = d
        return params, arriving

    def _take_up(self, steps: int) -> None:
        """What travelled when the run stopped after so many steps of the epoch, and has come since."""
        arrived = self.resumed.state.get(ARRIVING)
        if arrived is not None:
            found = {p: arrived[part] for p, part in enumerate(self.parts) if self.turns.travels(p, steps)}
            self.travelling = {p: done(d.clone()) for p, d in found.items()}
        self.resumed = Buffers(self.outer.theta.new_empty(0), {})
