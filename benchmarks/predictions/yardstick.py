"""Times the step before, between and after the parts of each run, beside another worker that computes too, as in the
run: the machine is shared, and for seconds or minutes a tenth slower or faster."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.plan import StepProfile
from trainers.cost.profiled import profiled_fields
from trainers.cost.profiles.link_timing import time_link
from trainers.cost.profiles.neighbours import computing, neighbours
from trainers.cost.profiles.step_timer import StepTimer, steps_of
from trainers.cost.profiles.step_timing import LAYER_STEPS, PARTS, ROW_PARTS, timed
from trainers.cost.timing import hardware_of
from trainers.spec import TrainSpec, WorkersSpec

MEASURED_S, LEAST = 1.5, 3
"""One measurement, and how many steps it has at least."""
FIRST = 2
"""Steps after a rest, of which the first takes twice as long: not timed."""
Taken = dict[str, list[float]]
"""Seconds of each part, one number a step."""


@dataclass(frozen=True)
class Yardstick:
    """A worker that makes steps when it is asked to, and rests in between; and its neighbours."""

    timer: StepTimer
    lines: list[Connection]
    about: StepProfile
    """All of a profile but how long the parts took."""

    def measure(self, seconds: float = MEASURED_S) -> Taken:
        """Make steps for so long, and the neighbours theirs."""
        with computing(self.lines):
            for _ in range(FIRST):
                self.timer.step()
            self.timer.forget()
            until = time.monotonic() + seconds
            while time.monotonic() < until or len(self.timer.forward) < LEAST:
                self.timer.step()
        return {name: list(getattr(self.timer, name)) for name in PARTS}

    def profile(self, *taken: Taken) -> StepProfile:
        """Of the steps of several measurements. What neighbours slow is in the parts."""
        whole = {name: [each for one in taken for each in one[name]] for name in PARTS}
        parts = {name: timed(seconds) for name, seconds in whole.items()}
        return self.about.model_copy(update={**parts, "steps": len(whole["forward"])})


@contextmanager
def yardstick(spec: TrainSpec, workers: int) -> Iterator[Yardstick]:
    """Of a spec, on a machine on which so many workers compute at the same time."""
    one = WorkersSpec(count=1, threads=spec.workers.threads, cpus=spec.workers.cpus)
    alone = spec.model_copy(update={"algorithm": SyncConfig(), "workers": one})
    latency_s, bytes_per_s = time_link()
    with steps_of(alone) as timer, neighbours(alone, workers - 1) as lines:
        with computing(lines):
            layers, rows = timer.layers(LAYER_STEPS), timer.rows(ROW_PARTS, LAYER_STEPS)
        parts = {name: timed(getattr(timer, name)) for name in PARTS}
        about = StepProfile(
            of=profiled_fields(spec),
            device=hardware_of(timer.setup.replica.device),
            cores=len(os.sched_getaffinity(0)),
            steps=LAYER_STEPS,
            layers=layers,
            rows=rows,
            link_latency_s=latency_s,
            link_bytes_per_s=bytes_per_s,
            **parts,
        )
        yield Yardstick(timer, lines, about)
