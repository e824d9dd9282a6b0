"""Counts a spec's model on the cluster, in a process that imports torch and the user's code, and ends with it."""

from collections.abc import Callable

import ray

from trainers.cost.workload import Workload
from trainers.errors import SpecRejected
from trainers.runtime.runs import runtime_environment
from trainers.spec import TrainSpec

LOOK_S = 0.5


def count(spec: TrainSpec, is_wanted: Callable[[], bool] = lambda: True) -> Workload:
    """What a worker of this spec has to do; takes seconds and no CPU that others are given.

    Args:
        spec: The job.
        is_wanted: Asked again and again. Once it says no, the count is cancelled.

    Raises:
        SpecRejected: As in a run, for data, task or model; or it was not wanted any more.
    """
    once = ray.remote(num_cpus=0, max_retries=0, max_calls=1, runtime_env=runtime_environment(spec))
    counted = once(_count).remote(spec)
    while not ray.wait([counted], timeout=LOOK_S)[0]:
        if not is_wanted():
            ray.cancel(counted, force=True)
            raise SpecRejected("data: its first examples were not read in time to count the model; plan another")
    try:
        found: Workload = ray.get(counted)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    return found


def _count(spec: TrainSpec) -> Workload:
    from trainers.cost.counting import count_workload
    from trainers.runtime.actors.base import use_code

    use_code(spec.code is not None)
    return count_workload(spec)
