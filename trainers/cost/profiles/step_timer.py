"""One worker that makes the steps of a spec, each part timed."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

from trainers import user_code
from trainers.algorithms.spatial.layers import RowModel
from trainers.cost.profiles.layer_timer import marking, medians
from trainers.cost.profiles.row_timer import row_seconds
from trainers.cost.timing import wait_for
from trainers.cost.workload import LayerSeconds
from trainers.data.batches import Batch, on_device
from trainers.errors import SpecRejected
from trainers.models.objective import Supervised
from trainers.models.passes.precision import computing_in
from trainers.models.products.measure import choose
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import TrainSpec
from trainers.training.setup import Setup, set_up

WARM_UPS = 3


class StepTimer:
    """Steps of one worker without anybody else, each part timed."""

    def __init__(self, setup: Setup) -> None:
        self.setup, params = setup, setup.begin()[0].buffers.params
        start = Buffers(params, setup.own_optimizer.initial_state(params))
        self.current, self.following = (_copied(start, setup.replica.device) for _ in range(2))
        self.gradient = torch.zeros_like(self.current.params)
        self.rule = SliceUpdate(setup.own_optimizer, self.gradient.numel(), self.gradient.device)
        self.batches = _endless(setup)
        self.marks: list[float] = []  # of the last step: when each part began, and the end
        self.forget()

    def forget(self) -> None:
        """All that was timed so far."""
        self.data: list[float] = []
        self.forward: list[float] = []
        self.backward: list[float] = []
        self.update: list[float] = []
        self.in_place: list[float] = []
        self.copied: list[float] = []

    @property
    def seconds(self) -> list[float]:
        """Of each step."""
        return [sum(parts) for parts in zip(self.data, self.forward, self.backward, self.update, strict=True)]

    def step(self) -> None:
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
        made = [Contribution(TensorGradient(self.gradient), max(total.weight, 1.0), rate)]
        self.rule.apply(made, self.current, self.following)
        mark()
        self.current, self.following = self.following, self.current
        self.rule.apply(made, self.following, self.following)  # which the next update overwrites
        mark()
        self.following.params.copy_(self.gradient)
        mark()
        self.marks = marks
        spans = [b - a for a, b in itertools.pairwise(marks)]
        parts = (self.data, self.forward, self.backward, self.update, self.in_place, self.copied)
        for into, seconds in zip(parts, spans, strict=True):
            into.append(seconds)

    def rows(self, parts: Sequence[int], steps: int) -> dict[int, float]:
        """Of the passes of so many steps more, what the layers whose rows can be divided take where a worker has one of
        so many parts of them; nothing of a model that does not begin with such layers."""
        replica, objective = self.setup.replica, self.setup.replica.objective
        batch = next(self.batches)
        if replica.compiles or not isinstance(objective, Supervised):
            return {}
        images = on_device(objective.inputs(batch.data), replica.device)
        try:
            model = RowModel(replica.model, images.shape[2])
        except (SpecRejected, IndexError):
            return {}
        found = dict[int, list[float]]()
        for part in (part for _ in range(steps) for part in parts):
            self.step()
            passes = self.forward[-1] + self.backward[-1]
            with computing_in(replica.precision, replica.device):
                found.setdefault(part, []).append(row_seconds(model, images, part, 1) / passes)
        for parameter in replica.parameters.values():
            parameter.grad = None
        return {part: median(shares) for part, shares in found.items()}

    def layers(self, steps: int) -> dict[str, LayerSeconds]:
        """What each layer took of so many steps more, at the median; nothing of a model that is compiled."""
        if self.setup.replica.compiles:
            return {}
        found = list[dict[str, LayerSeconds]]()
        for _ in range(steps):
            with marking(self.setup.replica.model, self.setup.replica.device) as marked:
                self.step()
            _, begun, turned, ended, *_ = self.marks
            found.append(marked.seconds(begun, turned, ended))
        return medians(found)


@contextmanager
def steps_of(spec: TrainSpec, on_step: Callable[[int], None] = lambda done: None) -> Iterator[StepTimer]:
    """One worker of the spec that has made its first steps, and forgotten how long they took.

    Args:
        spec: Of a single worker.
        on_step: Called after each of these steps with their number.

    Raises:
        SpecRejected: As in a run, for data, task, model or device.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(spec.workers.threads)
    try:
        with user_code.on_path(spec.code):
            setup = set_up(spec, None)
            with setup.dataset:
                timer = StepTimer(setup)
                timer.step()
                if seen := setup.replica.products.seen:  # as a run does: with the library that is faster here
                    setup.replica.multiply_as(choose(set(seen)))
                for done in range(WARM_UPS):
                    timer.step()
                    on_step(done + 1)
                timer.forget()
                yield timer
    finally:
        torch.set_num_threads(before)


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
