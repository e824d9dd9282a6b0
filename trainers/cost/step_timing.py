"""Times the step of a spec on this machine: one worker's passes, update and data, and the way between two workers."""

import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from trainers import user_code
from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.link_timing import time_link
from trainers.cost.plan import StepProfile, Timed
from trainers.cost.profiled import profiled_fields
from trainers.cost.timing import hardware_of, wait_for
from trainers.data.batches import Batch
from trainers.models.products.measure import choose
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import TrainSpec, WorkersSpec
from trainers.training.setup import Setup, set_up

WARM_UPS = 3
STEPS = 20


def profile_step(
    spec: TrainSpec, steps: int = STEPS, on_step: Callable[[int], None] = lambda done: None
) -> StepProfile:
    """Time so many steps of one worker, after a few that are not timed.

    Args:
        spec: The job; its algorithm does not matter.
        steps: How many.
        on_step: Called after each with the number of those that are done.

    Raises:
        SpecRejected: As in a run, for data, task, model or device.
    """
    cores = len(os.sched_getaffinity(0))
    alone = spec.model_copy(update={"algorithm": SyncConfig(), "workers": _one(spec.workers)})
    before = torch.get_num_threads()
    torch.set_num_threads(spec.workers.threads)
    try:
        with user_code.on_path(spec.code):
            setup = set_up(alone, None)
            with setup.dataset:
                timer = StepTimer(setup)
                timer.step(counts=False)
                if seen := setup.replica.products.seen:  # as a run does: with the library that is faster here
                    setup.replica.multiply_as(choose(set(seen)))
                for done in range(WARM_UPS + steps):
                    timer.step(counts=done >= WARM_UPS)
                    on_step(done + 1)
    finally:
        torch.set_num_threads(before)
    latency_s, bytes_per_s = time_link()
    return StepProfile(
        of=profiled_fields(spec),
        device=hardware_of(setup.replica.device),
        cores=cores,
        steps=steps,
        data=timed(timer.data),
        forward=timed(timer.forward),
        backward=timed(timer.backward),
        update=timed(timer.update),
        link_latency_s=latency_s,
        link_bytes_per_s=bytes_per_s,
    )


class StepTimer:
    """Steps of one worker without anybody else, each part timed."""

    def __init__(self, setup: Setup) -> None:
        self.setup, params = setup, setup.begin()[0].buffers.params
        start = Buffers(params, setup.own_optimizer.initial_state(params))
        self.current, self.following = (_copied(start, setup.replica.device) for _ in range(2))
        self.gradient = torch.zeros_like(self.current.params)
        self.rule = SliceUpdate(setup.own_optimizer, self.gradient.numel(), self.gradient.device)
        self.batches = _endless(setup)
        self.data: list[float] = []
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.update: list[float] = []

    def step(self, counts: bool) -> None:
        """One, in seconds."""
        device, replica, marks = self.setup.replica.device, self.setup.replica, [time.perf_counter()]

        def mark(_: float = 0.0) -> None:
            wait_for(device)
            marks.append(time.perf_counter())

        batch = next(self.batches)
        mark()
        total = replica.gradient(self.current.params, batch, self.gradient, on_weight=mark)
        mark()
        rate = self.setup.schedule(0)
        self.rule.apply(
            [Contribution(TensorGradient(self.gradient), max(total.weight, 1.0), rate)], self.current, self.following
        )
        mark()
        self.current, self.following = self.following, self.current
        if counts:
            spans = [b - a for a, b in itertools.pairwise(marks)]
            for into, seconds in zip((self.data, self.forward, self.backward, self.update), spans, strict=True):
                into.append(seconds)


def timed(seconds: list[float]) -> Timed:
    """Median, and standard deviation as the quartiles tell it: what disturbs a few steps moves neither."""
    if len(seconds) < 2:
        return Timed(median_s=seconds[0])
    first, median, third = statistics.quantiles(seconds, n=4)
    return Timed(median_s=median, spread_s=(third - first) / 1.349)


def write_profile(profile: StepProfile, path: Path) -> None:
    """Keep it as JSON."""
    path.write_text(profile.model_dump_json(indent=2) + "\n")


def _endless(setup: Setup) -> Iterator[Batch]:
    """The first worker's minibatches of one epoch after another."""
    epoch = 0
    while True:
        whole = range(max(1, setup.dataset.num_train // setup.spec.batch.per_worker))
        yield from setup.dataset.batches((epoch, setup.order.examples(epoch, index)) for index in whole)
        epoch += 1


def _copied(start: Buffers, device: torch.device) -> Buffers:
    state = {name: vector.to(device, copy=True) for name, vector in start.state.items()}
    return Buffers(start.params.to(device, copy=True), state)


def _one(workers: WorkersSpec) -> WorkersSpec:
    return WorkersSpec(count=1, threads=workers.threads, gpus=workers.gpus, cpus=workers.cpus)
