"""One run after another in one place, with processes that stay warm between them: what a sweep's trials run on.

A series starts its actors without detaching them, so that they die with the process that owns the series, and inside
that process's placement group where it is in one.
"""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.coordinator import Coordinator
from trainers.runtime.crew import Staff, start_actor
from trainers.runtime.evaluator import Evaluator
from trainers.runtime.runs import Run, runtime_environment
from trainers.runtime.worker import GROUPS as WORKER_GROUPS
from trainers.runtime.worker import Worker
from trainers.spec import TrainSpec

ANSWER_S = 10.0
"""A member of the staff that does not answer within this time is replaced."""


class Conductor(Coordinator):
    """A coordinator of one run after another."""

    def __init__(self) -> None:  # a run's own constructor is called when there is a run
        pass

    async def conduct(
        self, job_id: str, spec: TrainSpec, run_dir: str, runtime_env: dict[str, Any] | None, staff: Staff
    ) -> None:
        """Run one spec to its end."""
        Coordinator.__init__(self, job_id, spec, run_dir, runtime_env, staff)
        await self.run()


class Series:
    """Runs one spec after another. `pool` names what all runs of a sweep share: the folder with the data."""

    def __init__(self, name: str, pool: str, group: PlacementGroup | None = None) -> None:
        self.name = name
        self.pool = pool
        self.group = group
        self.conductor: Any = None
        self.staff: Staff | None = None
        self.hired_for: tuple[Any, ...] = ()
        self.call: Any = None

    def start(self, job_id: str, spec: TrainSpec, run_dir: Path) -> Run:
        """Start a run; the one before has ended.

        Raises:
            SpecRejected: The user's code would hide Millrace's own packages.
        """
        environment = runtime_environment(spec)
        wanted = (spec.workers.count, spec.workers.cpus, spec.workers.gpus, spec.workers.threads, spec.code)
        if self.staff is None or self.hired_for != wanted or not self._answers():
            self.close()
            self._hire(spec, environment)
            self.hired_for = wanted
        self.call = self.conductor.conduct.remote(job_id, spec, str(run_dir.resolve()), environment, self.staff)
        return Run(job_id, self.conductor)

    @property
    def is_idle(self) -> bool:
        """Whether nobody works on a run: it has ended, or its coordinator has died."""
        return self.call is None or bool(ray.wait([self.call], timeout=0)[0])

    def close(self) -> None:
        """End all actors."""
        members = [self.conductor, *self.staff.workers, self.staff.evaluator] if self.staff else []
        for member in members:
            with suppress(Exception):
                ray.kill(member)
        self.staff = self.conductor = self.call = None

    def _hire(self, spec: TrainSpec, environment: dict[str, Any] | None) -> None:
        prefix = f"{self.name}/{uuid.uuid4().hex[:6]}"  # the names of actors that are dying are taken for a while
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        if self.group is not None:  # with the shards that a coordinator starts
            here = PlacementGroupSchedulingStrategy(self.group, 0, placement_group_capture_child_tasks=True)
        self.conductor = ray.remote(Conductor).options(
            name=f"{prefix}/coordinator", namespace=NAMESPACE, num_cpus=0, max_restarts=0, max_concurrency=1000,
            scheduling_strategy=here,
        ).remote()  # fmt: skip
        workers = []
        for rank in range(spec.workers.count):
            options: dict[str, Any] = {"num_cpus": spec.workers.cpus, "num_gpus": spec.workers.gpus}
            if self.group is not None and (spec.workers.cpus or spec.workers.gpus):
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(self.group, 1 + rank)
            name = f"{prefix}/worker/{rank}"
            options["runtime_env"] = environment
            workers.append(start_actor(Worker, name, options, WORKER_GROUPS, (name, self.pool, spec, None)))
        options = {"num_cpus": 0, "runtime_env": environment, "scheduling_strategy": here}
        name = f"{prefix}/evaluator"
        evaluator = start_actor(Evaluator, name, options, {"control": 2}, (name, self.pool, spec))
        self.staff = Staff(workers, evaluator)

    def _answers(self) -> bool:
        assert self.staff is not None
        try:
            ray.get([member.place.remote() for member in (*self.staff.workers, self.staff.evaluator)], timeout=ANSWER_S)
            ray.get(self.conductor.__ray_ready__.remote(), timeout=ANSWER_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return False
        return True
