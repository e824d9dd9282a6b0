"""Times the step of a spec on this machine: one worker's passes, update and data, and the way between two workers."""

import os
import statistics
from collections.abc import Callable
from pathlib import Path

from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.cost.plan import StepProfile, Timed
from trainers.cost.profiled import profiled_fields
from trainers.cost.profiles.link_timing import time_link
from trainers.cost.profiles.neighbours import contention, neighbours_of
from trainers.cost.profiles.step_timer import WARM_UPS, steps_of
from trainers.cost.timing import hardware_of
from trainers.spec import TrainSpec, WorkersSpec

STEPS = 20
PARTS = ("data", "forward", "backward", "update", "in_place", "copied")
ROW_PARTS = (1, 2, 4)
DISTURBED = 2.0
"""Steps that take so many medians are taken not to be the job's: few are timed, and one of them would tell too much."""
LAYER_STEPS = 5
"""In which each layer is timed, too."""


def profile_step(
    spec: TrainSpec, steps: int = STEPS, on_step: Callable[[int], None] = lambda done: None
) -> StepProfile:
    """Time so many steps of one worker, after a few that are not timed; then as many while others compute beside it.

    Args:
        spec: The job; its algorithm does not matter.
        steps: How many.
        on_step: Called after each that it makes alone with the number of those that are done.

    Raises:
        SpecRejected: As in a run, for data, task, model or device.
        RunFailed: A process died.
    """
    cores = len(os.sched_getaffinity(0))
    alone = spec.model_copy(update={"algorithm": SyncConfig(), "workers": _one(spec.workers)})
    neighbours, longer = neighbours_of(alone), 1.0
    with steps_of(alone, on_step) as timer:
        for done in range(WARM_UPS, WARM_UPS + steps):
            timer.step()
            on_step(done + 1)
        parts = {name: timed(getattr(timer, name)) for name in PARTS}
        layers = timer.layers(LAYER_STEPS)
        rows = timer.rows(ROW_PARTS, LAYER_STEPS) if isinstance(spec.algorithm, SpatialConfig) else {}
        if neighbours:
            longer = contention(timer, alone, neighbours, steps)
        device = hardware_of(timer.setup.replica.device)
    latency_s, bytes_per_s = time_link()
    return StepProfile(
        of=profiled_fields(spec),
        device=device,
        cores=cores,
        steps=steps,
        **parts,
        layers=layers,
        rows=rows,
        neighbours=neighbours,
        contention=longer,
        link_latency_s=latency_s,
        link_bytes_per_s=bytes_per_s,
    )


def timed(seconds: list[float]) -> Timed:
    """Mean, without what took DISTURBED medians; and the standard deviation as the quartiles tell it."""
    if len(seconds) < 2:
        return Timed(median_s=seconds[0], mean_s=seconds[0])
    first, median, third = statistics.quantiles(seconds, n=4)
    mean = statistics.fmean(each for each in seconds if each <= DISTURBED * median)
    return Timed(median_s=median, spread_s=(third - first) / 1.349, mean_s=mean)


def write_profile(profile: StepProfile, path: Path) -> None:
    """Keep it as JSON."""
    path.write_text(profile.model_dump_json(indent=2) + "\n")


def _one(workers: WorkersSpec) -> WorkersSpec:
    return WorkersSpec(count=1, threads=workers.threads, gpus=workers.gpus, cpus=workers.cpus)
