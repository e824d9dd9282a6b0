"""Asynchronous back-propagation: groups of layers go backward later than forward."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work, oldest_clock
from trainers.algorithms.downpour.config import Backprop, DownpourConfig
from trainers.algorithms.downpour.microbatch import Microbatch, microbatches, other_threads
from trainers.models.products.threads import use_threads
from trainers.parameter_server.protocol import Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.spans import span


@dataclass(frozen=True)
class PipelinedMicrobatch:
    """A minibatch that has gone forward, but not yet backward through all groups."""

    number: int
    """s: its number among this worker's minibatches."""
    epoch: int
    index: int
    examples: int
    microbatch: Microbatch


class PipelinedDownpour(Algorithm):
    """Downpour whose back-propagation is asynchronous: groups of layers work on earlier minibatches' error signals.

    The model is a chain f_M o ... o f_1 of groups with parameters w_1 ... w_M; d is the delay. In step t a worker
    fetches w^t and computes, with a_0^t = x_t,

        forward, minibatch t                  a_m^t = f_m(a_{m-1}^t; w_m^t)   for m = 1 ... M,   e_M^t = dL(a_M^t)/da_M
        group m, minibatch s = t - (M - m) d  g_m^s = e_m^s df_m/dw(a_{m-1}^s; w_m^s)
                                              e_{m-1}^s = e_m^s df_m/da(a_{m-1}^s; w_m^s)

    where group m + 1 computed e_m^s d steps ago. So g_m^s is the gradient of ordinary back-propagation for minibatch s,
    with the activities and the parameters w^s of its forward pass. It is pushed (M - m) d steps later, under the
    identity of minibatch s: the delayed gradient of Huo et al. 2018, algorithm 1, where d = 1. With d > 0 no group
    waits for another within a step, and if a worker has several threads, the groups run in parallel with the forward
    pass. A worker keeps the parameters and activities of (M - 1) d + 1 minibatches. After the last minibatch it
    continues until that has reached the first group. Unlike in the decoupled interfaces of Jaderberg et al. 2017,
    nothing is predicted.
    """

    def __init__(self, config: DownpourConfig, backprop: Backprop, context: Context) -> None:
        assert context.store is not None
        self.config, self.backprop, self.context, self.store = config, backprop, context, context.store
        self.feedback = context.feedback()
        self.microbatches = microbatches(context.replica, backprop.groups, backprop.longest + 1)
        self.delays = tuple((backprop.groups - 1 - m) * backprop.delay for m in range(backprop.groups))
        layout, chain = context.replica.layout, self.microbatches[0].groups
        inside = [layout.names_in(span) for span in context.groups]
        self.parts = [[g for g, names in enumerate(inside) if set(names) & set(layers.names)] for layers in chain]
        self.names = [[name for g in part for name in inside[g]] for part in self.parts]
        self.in_flight: dict[int, PipelinedMicrobatch] = {}  # by number
        self.clock = 0  # minibatches since `begun_at`, the clock at which this worker joined
        self.begun_at = context.store.clock_at_start
        self.fetched = -1  # number of the minibatch of the last fetch
        num_threads = min(other_threads(), backprop.groups - 1)
        self.threads = None
        if num_threads and backprop.delay:
            self.threads = ThreadPoolExecutor(num_threads, initializer=use_threads, initargs=(torch.get_num_threads(),))

    def step(self, work: Work) -> StepReport:
        (minibatch,) = work.minibatches
        assert minibatch.batch is not None
        t, into = self.clock, self.store.gradient_buffer()
        late = self._begin_late(t, into)
        params, examples = self._fetch()
        microbatch = self.microbatches[t % len(self.microbatches)]
        loss = microbatch.forward(params, minibatch.batch)
        self.in_flight[t] = PipelinedMicrobatch(t, work.epoch, minibatch.index, work.examples, microbatch)
        for m in reversed(range(self.backprop.groups)):
            if self.delays[m] == 0:
                microbatch.backward(m, self.names[m], into)
                self._push(m, self.in_flight[t])
        self._finish_late(late)
        self.clock += 1
        return StepReport(loss, work.examples, self.context.schedule(examples), delays=self.delays)

    def finish(self) -> None:
        """Complete the backward passes of the last minibatches, and leave the store."""
        for t in range(self.clock, self.clock + self.backprop.longest):
            self._finish_late(self._begin_late(t, self.store.gradient_buffer()))
        assert not self.in_flight
        if self.threads is not None:
            self.threads.shutdown()
        self.store.leave()

    def _fetch(self) -> tuple[Tensor, int]:
        """Fetch all groups. Returns the parameters (P,) and the examples applied in the group that is furthest
        behind."""
        min_clock = oldest_clock(self.begun_at + self.clock, self.config.max_staleness)
        with span("fetch"):
            handles = [self.store.fetch(min_clock, group) for group in range(len(self.context.groups))]
            found = [handle.wait() for handle in handles]
        self.fetched = self.clock
        return found[-1].params, min(fetched.examples for fetched in found)

    def _begin_late(self, t: int, into: Tensor) -> list[tuple[int, PipelinedMicrobatch, Future[None]]]:
        """Start the backward passes of step t that do not depend on its forward pass; with one thread, run them."""
        late = []
        for m, delay in enumerate(self.delays):
            delayed = self.in_flight.get(t - delay) if delay else None
            if delayed is not None:
                late.append((m, delayed, self._run(delayed.microbatch, m, into)))
        return late

    def _run(self, microbatch: Microbatch, m: int, into: Tensor) -> Future[None]:
        if self.threads is not None:
            return self.threads.submit(microbatch.backward, m, self.names[m], into)
        done: Future[None] = Future()
        microbatch.backward(m, self.names[m], into)
        done.set_result(None)
        return done

    def _finish_late(self, late: list[tuple[int, PipelinedMicrobatch, Future[None]]]) -> None:
        for m, delayed, backward in reversed(late):
            backward.result()
            self._push(m, delayed)

    def _push(self, m: int, microbatch: PipelinedMicrobatch) -> None:
        for group in self.parts[m]:
            identity = PushIdentity(microbatch.epoch, microbatch.index, microbatch.index, group)
            clock = self.begun_at + microbatch.number + 1
            delay = self.fetched - microbatch.number
            wire, examples = self.context.wire, microbatch.examples
            with span("push"):
                self.store.push(Push(identity, clock, examples, delay=delay, wire=wire, feedback=self.feedback))
        if m == 0:
            del self.in_flight[microbatch.number]
