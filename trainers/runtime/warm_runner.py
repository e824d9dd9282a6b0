"""Runs one job after another with processes that stay warm between them: the trials of a sweep.

A runner starts its actors without detaching them, so that they die with the process that owns the runner, and inside
that process's placement group if it is in one.
"""

import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from trainers.runtime.actor_handles import WarmPool, start_actor
from trainers.runtime.actors.evaluator import Evaluator
from trainers.runtime.actors.worker import GROUPS as WORKER_GROUPS
from trainers.runtime.actors.worker import Worker
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.control.config import RunConfig
from trainers.runtime.coordinator import Coordinator
from trainers.runtime.gone import GONE
from trainers.runtime.runs import Run, runtime_environment
from trainers.spec import TrainSpec

ANSWER_S = 10.0
"""An actor that does not answer within this time is replaced before the next run."""


class TrialCoordinator(Coordinator):
    """A coordinator of one run after another."""

    def __init__(self) -> None:  # a run's own constructor is called when there is a run
        pass

    async def run_trial(self, config: RunConfig) -> None:
        """Run one spec to its end."""
        Coordinator.__init__(self, config)
        await self.controller.run()


class WarmRunner:
    """Runs one spec after another, each with the actors of the one before if they fit."""

    def __init__(self, name: str, pool: str, group: PlacementGroup | None = None) -> None:
        """name: Begins the names of the actors. pool: Names what all runs of a sweep share: the folder with the data.
        group: Where the actors are placed."""
        self.name = name
        self.pool = pool
        self.group = group
        self.coordinator: Any = None
        self.warm_pool: WarmPool | None = None
        self.started_for: tuple[Any, ...] = ()
        self.call: Any = None

    def start(self, job_id: str, spec: TrainSpec, run_dir: Path) -> Run:
        """Start a run; the one before has ended.

        Raises:
            SpecRejected: The user's code would hide Millrace's own packages.
        """
        environment = runtime_environment(spec)
        wanted = (spec.workers.count, spec.workers.cpus, spec.workers.gpus, spec.workers.threads, spec.code)
        if self.warm_pool is None or self.started_for != wanted or not self._answers():
            self.close()
            self._start_actors(spec, environment)
            self.started_for = wanted
        config = RunConfig(job_id, spec, run_dir.resolve(), environment, self.warm_pool)
        self.call = self.coordinator.run_trial.remote(config)
        return Run(job_id, self.coordinator)

    @property
    def is_idle(self) -> bool:
        """Whether no run is under way: the last one has ended, or its coordinator has died."""
        return self.call is None or bool(ray.wait([self.call], timeout=0)[0])

    def close(self) -> None:
        """End all actors."""
        warm = self.warm_pool
        for actor in [self.coordinator, *warm.workers, warm.evaluator] if warm else []:
            with suppress(Exception):
                ray.kill(actor)
        self.warm_pool = self.coordinator = self.call = None

    def _start_actors(self, spec: TrainSpec, environment: dict[str, Any] | None) -> None:
        prefix = f"{self.name}/{uuid.uuid4().hex[:6]}"  # the names of dying actors stay taken for a while
        here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        if self.group is not None:  # with the shards that a coordinator starts
            here = PlacementGroupSchedulingStrategy(self.group, 0, placement_group_capture_child_tasks=True)
        self.coordinator = ray.remote(TrialCoordinator).options(
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
        self.warm_pool = WarmPool(workers, evaluator)

    def _answers(self) -> bool:
        assert self.warm_pool is not None
        try:
            ray.get(
                [actor.place.remote() for actor in (*self.warm_pool.workers, self.warm_pool.evaluator)],
                timeout=ANSWER_S,
            )
            ray.get(self.coordinator.__ray_ready__.remote(), timeout=ANSWER_S)
        except (*GONE, ray.exceptions.GetTimeoutError):
            return False
        return True
