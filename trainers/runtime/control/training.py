"""The training of a run from its first generation to its last: the members of each group, and what comes next.

Events change what is known; `advance` decides from it and begins what follows. Nothing here waits.
"""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any

from trainers.elastic.failure_policy import FailurePolicy, GiveUp
from trainers.elastic.lease_table import Lease
from trainers.errors import Diverged, WorkerDied
from trainers.events import State, who_trains
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control.generations import GenerationPlanner
from trainers.runtime.control.parts import RunParts
from trainers.runtime.control.run_events import (
    GenerationEnded,
    Regrouped,
    StartedRun,
    TaskFailed,
    WorkerLost,
    WorkerReady,
)
from trainers.runtime.control.run_progress import RunProgress
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.runtime.control.worker_scaler import WorkerScaler
from trainers.runtime.gone import GONE, how
from trainers.runtime.memory import ENDED, REMEDY, ended_for_memory, memory_told, with_remedy
from trainers.runtime.messages import Prepared
from trainers.runtime.nodes import died_with
from trainers.training.messages import GenerationEnd, WorkerReport


class GroupPhase(Enum):
    """What a group does."""

    READY = auto()
    """It begins a generation as soon as it has workers enough."""
    TRAINING = auto()
    REGROUPING = auto()
    """Between two generations: what the last one left unsettled is being put right."""
    RESTING = auto()
    """It has trained everything that its members know of."""


class Training:
    """The groups of a run, and their workers."""

    def __init__(self, parts: RunParts, started: StartedRun, scaler: WorkerScaler, incarnation: int) -> None:
        """incarnation: How many coordinators of the run have died."""
        config = parts.config
        self.parts = parts
        self.scaler = scaler
        self.progress = RunProgress(config.spec, started.prepared, [len(group) for group in started.groups], parts.log)
        self.planner = GenerationPlanner(config, parts.topology, self.progress, started, incarnation)
        self.failures = FailurePolicy()
        self.groups: list[WorkerGroup] = []
        for members in started.groups:
            self._add_group(members, () if self.groups else started.endings)
        self.phases = [GroupPhase.READY] * len(self.groups)  # by the group's number
        self.draining: frozenset[str] = frozenset()
        self.num_reserving = 0  # workers that will be started as soon as there is room for them
        self.waits_for_workers = False
        self.is_stopping = False
        self.numel, self.has_told_memory = started.prepared.numel, False
        if started.updates is not None:
            self.progress.agreed_on(started.updates)

    # -- what workers ask ------------------------------------------------------------------------------------------

    def report(self, report: WorkerReport) -> None:
        """Count what a worker did. A report for an earlier coordinator is void: what was done then is found where it
        was done."""
        if self.planner.is_current(report.number, report.generation):
            try:
                self.progress.add(report)
            except Diverged as error:  # no concern of the worker that reports
                self.parts.events.put_nowait(TaskFailed(error))
            self.failures.progressed(self.progress.examples)
            if any(report.peak_bytes) and not self.has_told_memory:
                self.has_told_memory = True
                self.parts.log.line("info", memory_told(self.parts.config.spec, self.numel, report))

    def lease(self, number: int, generation: int, dropped: Sequence[Lease]) -> list[Lease | None]:
        """Minibatches for an asynchronous worker; None is the end. Nothing for a worker of an earlier coordinator."""
        if not self.planner.is_current(number, generation):
            return []
        return self.progress.lease(number, dropped, closed=self.is_stopping)

    # -- what happens ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End with the steps under way."""
        self.is_stopping = True
        for group in self.groups:
            group.stop()
            self.parts.tasks.start(group.hold())

    def drain(self, nodes: frozenset[str]) -> None:
        """These nodes are about to be taken away."""
        self.draining = nodes

    def worker_ready(self, event: WorkerReady) -> None:
        """Have a worker join the group that lacks one."""
        worker = event.worker
        worker.prepared = event.prepared
        if worker.is_leaving:  # it was one too many by the time it was ready
            self.parts.pool.let_go(worker)
            return
        group = self.scaler.group_for_newcomer(self.groups) or self._new_group()
        self._log_resize([worker], [])
        group.join(worker)
        self.parts.tasks.start(group.hold())

    def worker_lost(self, event: WorkerLost) -> None:
        """Log the loss of a worker and strike it off; `advance` replaces it.

        Raises:
            WorkerDied: That was one too many.
        """
        worker, log = event.worker, self.parts.log
        if event.why.startswith("broke"):
            log.line("error", event.frames)
        self._log_fault(worker.name, event.why)
        if self.parts.config.is_trial:
            raise WorkerDied(f"{worker.name} {event.why}, and a trial's processes are not replaced")
        self.parts.pool.let_go(worker)
        node = None
        if worker.prepared is not None:
            self._log_resize([], [worker])
            node = worker.prepared.place.node_id
        if event.with_node:
            return
        self._ask_why(worker.actor, worker.name, event.why)
        self._fail_if_hopeless(
            self.failures.failed(f"{worker.name} {event.why}", node, worker.number, self.parts.pool.num_started)
        )

    def generation_ended(self, event: GenerationEnded) -> None:
        """Let a group rest that has nothing left to train; put right what another one has left unsettled."""
        group = self.groups[event.group]
        if event.is_complete or group.is_stopping:
            self._rest(group)
            return
        self.phases[group.number] = GroupPhase.REGROUPING
        self.progress.log_metrics()
        self.parts.tasks.start(self._regroup(group))

    def regrouped(self, event: Regrouped) -> None:
        """A group may begin its next generation."""
        self.phases[event.group] = GroupPhase.READY

    def shard_died(self, index: int) -> None:
        """Log the death of a shard's process.

        Raises:
            WorkerDied: That was one too many.
        """
        pool = self.parts.pool
        why = pool.why_gone(pool.shards[index])
        self._log_fault(f"{pool.job_id}/shard/{index}", why)
        self._ask_why(pool.shards[index], f"shard {index}", why)
        name, age = f"shard {index}", pool.shard_ages[index]
        decision = self.failures.failed(f"{name} {why}", pool.shard_nodes[index], age, pool.num_started, name)
        self._fail_if_hopeless(decision)

    # -- what follows ----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all groups rest, and nothing is left to train."""
        return all(phase is GroupPhase.RESTING for phase in self.phases) and not self._has_work

    def advance(self) -> None:
        """Begin what follows from what is known."""
        self._scale()
        for group in self.groups:
            self._advance(group)

    def _scale(self) -> None:
        decision = self.scaler.decide(self.parts.pool.workers, self.num_reserving, self.draining)
        for _ in range(decision.num_to_start):
            self.num_reserving += 1
            self.parts.tasks.start(self._start_worker())
        for worker in decision.to_release:
            worker.is_leaving = True
            for group in self.groups:
                if worker in (*group.members, *group.joining):
                    group.leave(worker)
                    self.parts.tasks.start(group.hold())

    def _advance(self, group: WorkerGroup) -> None:
        """Begin a group's next generation, unless it is busy, rests, or has too few members."""
        if self._wakes_up(group):
            self.phases[group.number] = GroupPhase.READY
        if self.phases[group.number] is not GroupPhase.READY:
            return
        for worker in group.change_members():
            self._let_go(group, worker)
        if self._is_too_small(group) and not group.is_stopping:
            return
        if not group.members:
            self._rest(group)
            return
        self.phases[group.number] = GroupPhase.TRAINING
        self.parts.tasks.start(group.train(self.planner.plan(group, self.parts.pool.workers)))

    def _wakes_up(self, group: WorkerGroup) -> bool:
        """Whether a group that rests has to go on: a member is to leave, or there is something to train again."""
        if self.phases[group.number] is not GroupPhase.RESTING or not (group.members or group.joining):
            return False
        return bool(group.leaving) or self._has_work

    def _is_too_small(self, group: WorkerGroup) -> bool:
        """Whether a synchronous group must wait for workers; the log says when that begins and ends."""
        num_members, least = len(group.members), self.parts.config.spec.workers.min
        is_short = not self.progress.leases and num_members < least
        if is_short and not self.waits_for_workers:
            message = f"waits for room: {num_members} workers are left, workers.min is {least}"
            self.parts.log.state(State.RECOVERING, "TooFewWorkers", message)
        elif self.waits_for_workers and not is_short:
            self.parts.log.state(State.RUNNING, "Training", who_trains(num_members))
        self.waits_for_workers = is_short
        return is_short

    @property
    def _has_work(self) -> bool:
        return not self.is_stopping and self.progress.has_unleased

    def _rest(self, group: WorkerGroup) -> None:
        """A worker asks for leases ahead of need. After it has heard of the end, it may have been given the leases of a
        worker that died, and not have looked at them: they are leased again."""
        self.progress.form_group(group.number, [])
        self.phases[group.number] = GroupPhase.RESTING

    def _let_go(self, group: WorkerGroup, worker: WorkerHandle) -> None:
        self.parts.pool.let_go(worker)
        self.progress.form_group(group.number, [member.number for member in group.members])
        self._log_resize([], [worker])

    def _new_group(self) -> WorkerGroup:
        self.phases.append(GroupPhase.RESTING)
        return self._add_group([], ())

    def _add_group(self, members: Sequence[WorkerHandle], endings: Sequence[GenerationEnd]) -> WorkerGroup:
        group = WorkerGroup(len(self.groups), members, self.parts.events, endings, self.parts.watch.is_computing)
        self.groups.append(group)
        return group

    def _ask_why(self, actor: Any, name: str, why: str) -> None:
        """Find out whether an actor was lost for want of memory; nothing waits for that."""
        if "OutOfMemoryError" in why:  # Ray's own monitor has ended it, or a GPU was full
            self.parts.log.line("error", f"{name} lacked memory: {REMEDY}")
        elif why.startswith("died"):
            known = self.parts.watch.memory_kills(actor)  # the watch forgets it soon
            self.parts.tasks.start_background(f"asking why {name} died", self._say_if_for_memory(known, name, why))

    def _fail_if_hopeless(self, decision: GiveUp | None) -> None:
        if decision is not None:
            raise WorkerDied(with_remedy(decision.message))

    # -- what takes time -------------------------------------------------------------------------------------------

    async def _say_if_for_memory(self, known: tuple[str, int] | None, name: str, why: str) -> None:
        if await ended_for_memory(known):
            self.parts.log.line("error", f"{name} {ENDED}: {REMEDY}")
            self.failures.learned(f"{name} {why}", f"{name} {ENDED}")

    async def _start_worker(self) -> None:
        pool, events = self.parts.pool, self.parts.events
        try:
            reserved = await pool.reserve(1, 1)
        finally:
            self.num_reserving -= 1
        (worker,) = pool.start_workers(reserved)
        node = worker.node
        try:
            prepared: Prepared = await worker.ask("prepare", False, False)
        except GONE as error:
            why = f"{worker.fault or how(error)} before it was ready"
            events.put_nowait(WorkerLost(worker, why, with_node=await died_with(node)))
        else:
            events.put_nowait(WorkerReady(worker, prepared))

    async def _regroup(self, group: WorkerGroup) -> None:
        """Put right what a generation that was cut short has left: leases, and shards that are a step apart."""
        shards = self.parts.shards
        if self.progress.leases:
            rows, members = tuple(await shards.applied()), [member.number for member in group.members]
            has_missed = any(ending.lost for ending in group.endings)  # a worker, or the shards
            self.progress.settle_leases(group.number, rows, () if has_missed else members)
            self.progress.form_group(group.number, members)
        elif self.parts.pool.shards:
            self.progress.agreed_on(await shards.agree())
        elif group.latest is None:
            message = "no worker has the newest version any more: back to the last checkpoint"
            self.parts.log.line("warning", message)
        self.parts.events.put_nowait(Regrouped(group.number))

    # -- what the log says -----------------------------------------------------------------------------------------

    def _log_fault(self, actor: str, why: str) -> None:
        self.parts.log.write("fault", {"actor": actor, "why": why, "examples": self.progress.examples})

    def _log_resize(self, joined: Sequence[WorkerHandle], left: Sequence[WorkerHandle]) -> None:
        spec = self.parts.config.spec
        workers = len([one for one in self.parts.pool.workers if one.prepared and not one.is_leaving])
        batch = {"batch": spec.virtual_for(workers) * spec.batch.per_worker} if spec.scales_batch else {}
        self.parts.log.write("resize", {
            "workers": workers,
            "joined": [worker.name for worker in joined],
            "left": [worker.name for worker in left],
            "nodes": {worker.name: worker.prepared.place.node_ip for worker in joined if worker.prepared},
            "examples": self.progress.examples,
        } | batch)  # fmt: skip
