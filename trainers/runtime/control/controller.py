"""Runs one spec to its end: polls what has happened, decides what follows, and begins it. Tensors never pass here."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from trainers.elastic.lease_table import Lease
from trainers.errors import Fenced, GoesBack, RunFailed, SpecRejected, Stopped
from trainers.events import Result, State, StopReason, who_trains
from trainers.runtime.control import run_events as happened
from trainers.runtime.control.ending import (
    Circumstances,
    RunEnd,
    after_failure,
    cause_of,
    explanation,
    last_word,
    stopped,
    succeeded,
)
from trainers.runtime.control.launch import Launcher
from trainers.runtime.control.parts import RunParts
from trainers.runtime.control.recovery import Recovery, can_go_on
from trainers.runtime.control.run_log import LogSummary
from trainers.runtime.control.run_progress import RunPhase, RunProgress
from trainers.runtime.control.snapshots import Measured, Snapshot
from trainers.runtime.control.training import Training
from trainers.runtime.control.worker_scaler import WorkerScaler
from trainers.runtime.ray_metrics import KEEP_S
from trainers.training.messages import WorkerReport

DRAIN_LOOK_S = 2.0
"""Between two looks at which nodes are about to be taken away."""
FAREWELL_S = 5.0
"""How much later than its workers a coordinator may die that is killed together with them."""


class RunController:
    """One run, under one coordinator."""

    def __init__(self, parts: RunParts, launcher: Launcher, recovery: Recovery, is_successor: bool) -> None:
        """is_successor: Whether the run had a coordinator before, which died."""
        self.parts = parts
        self.launcher = launcher
        self.recovery = recovery
        self.is_successor = is_successor
        self.scaler = WorkerScaler(parts.config.spec, parts.config.is_trial)
        self.phase = RunPhase.NEW
        self.before = LogSummary()  # what the log said when this coordinator began
        self.stops_as: State | None = None  # the state in which the run ends, once it was told to stop
        self.stop_reason: StopReason | None = None  # why, if who told it has said so
        self.plateau = ""  # why it ends early, if it does
        self.training: Training | None = None  # from OPENING on
        self.guards: list[asyncio.Task[None]] = []  # what must not fail while the run trains
        self.lost_updates = 0
        self.end: RunEnd | None = None
        self.result: Result | None = None

    # -- what the coordinator's callers ask ------------------------------------------------------------------------

    def stop(self, stops_as: State, why: StopReason | None = None) -> None:
        """End cleanly, at the end of a step, with a checkpoint. stops_as: CANCELLED or PAUSED."""
        self.parts.events.put_nowait(happened.StopRequested(stops_as, why))

    def scale(self, count: int) -> None:
        """Train with so many workers from soon on.

        Raises:
            SpecRejected: The run cannot have so many, or so few.
        """
        self.scaler.check(count)
        self.parts.events.put_nowait(happened.ScaleRequested(count))

    def report(self, report: WorkerReport) -> None:
        """A worker says what it did. Counted at once, because the worker waits for that."""
        if self.training is not None:
            self.training.report(report)

    def lease(self, number: int, generation: int, dropped: Sequence[Lease]) -> list[Lease | None]:
        """An asynchronous worker gives back the leases whose gradients it has dropped, and asks for more; None is the
        end. A worker that asks a coordinator which does not know its generation gets nothing."""
        return [] if self.training is None else self.training.lease(number, generation, dropped)

    # -- the life of the run ---------------------------------------------------------------------------------------

    async def run(self) -> RunEnd | None:
        """From the first event of the log to the last one. None if the run was over before, or if another coordinator
        has taken over: then its log is not ours to end."""
        config, log = self.parts.config, self.parts.log
        config.run_dir.mkdir(parents=True, exist_ok=True)
        self.before = log.summary() if self.is_successor else LogSummary()
        if self.before.is_over:
            return None
        log.open()
        try:
            self.begin()
            while self.end is None:
                await self.iterate()
            await self.parts.watch.hear_out()
        except Fenced:
            return None
        finally:
            self.phase = RunPhase.ENDED
            await self._tear_down()
        if config.is_trial and self.end.reason == "WorkerDied":
            # If a trial is being killed, this process may be the last to go: then the trial has not failed.
            await asyncio.sleep(FAREWELL_S)
        self.end = await self.parts.callbacks.finish(self.end, self._last_word(), self.result)
        end = self._last_word()
        with suppress(OSError):  # on a full disk the log has no end; its readers notice that the coordinator is gone
            end = log.end(end, self.result)
            log.close()
        return end

    def begin(self) -> None:
        """Start the run, or look for what is left of it."""
        self.parts.tasks.start_background("watching the actors' heartbeats", self.parts.watch.run())
        if not self.is_successor:
            self.parts.log.state(State.STARTING, "Starting", "starting workers")
            self._start(self.parts.config.spec.workers.count)
            return
        self.parts.log.state(State.RECOVERING, *self.before.succession)
        self.parts.tracing.take_over(self.before.trace)
        self.stops_as = self.before.stops_as
        self.scaler.want(self.before.wanted or self.scaler.wanted)
        self.phase = RunPhase.LOOKING
        self.parts.tasks.start(self._find_survivors())

    async def iterate(self) -> None:
        """Poll: wait for the next event. Decide: take it in. Act: begin what follows from it."""
        event = await self.parts.events.get()
        try:
            self._take_in(event)
            if self.phase is RunPhase.TRAINING and self.training is not None:
                self.training.advance()
                if self.training.is_over:
                    self._collect(self.training)
        except Fenced:
            raise
        except Exception as error:
            self._fail(error)

    def _last_word(self) -> RunEnd:
        self._hear_late_stops()
        assert self.end is not None, "the run has ended"
        return last_word(self.end, self.parts.config.starts_again, was_told_to_stop=self.stops_as is not None)

    async def _tear_down(self) -> None:
        """End everything that is under way, and all actors."""
        await self.parts.tasks.cancel()
        self.parts.standbys.close()
        await self.parts.pool.dismiss()
        await self.parts.snapshots.close()
        self.parts.topology.close()

    def _hear_late_stops(self) -> None:
        """Do not go back to a checkpoint if the run was told to stop while it ended."""
        while not self.parts.events.empty():
            event = self.parts.events.get_nowait()
            if isinstance(event, happened.StopRequested):
                self.stops_as, self.stop_reason = event.stops_as, event.why
        if self.end is not None and self.end.state is State.RECOVERING and self.stops_as is not None:
            self.end = stopped(self.stops_as, "with its last checkpoint", self.stop_reason)

    # -- what has happened -----------------------------------------------------------------------------------------

    def _take_in(self, event: happened.RunEvent) -> None:
        match event:
            case happened.StopRequested(stops_as, why):
                self._stop(stops_as, why)
            case happened.ScaleRequested(count):
                self.scaler.want(count)
                self.parts.log.wanted(count)
            case happened.RequestNoted(request):
                self.parts.log.write("request", request)
            case happened.SurvivorsFound(survivors):
                usable = can_go_on(survivors, self.parts.config.spec)
                self.parts.tasks.start(self._take_back(survivors) if usable else self._remove_leftovers(survivors))
            case happened.LeftoversRemoved():
                self._start_again()
            case happened.RunStarted(started):
                self._open(started)
            case happened.ShardsServe():
                self.phase = RunPhase.TRAINING
            case happened.LastVersionTaken(snapshot, lost_updates):
                self._finish(snapshot, lost_updates)
            case happened.RunMeasured(measured):
                self._end_well(measured)
            case happened.TaskFailed(error):
                raise error
            case happened.BackgroundFailed(what, error):
                self.parts.log.line("warning", f"{what} failed: {type(error).__name__}: {error}")
            case _ if self.training is not None:
                self._take_in_training(event, self.training)

    def _take_in_training(self, event: happened.RunEvent, training: Training) -> None:
        match event:
            case happened.WorkerReady():
                training.worker_ready(event)
            case happened.WorkerLost():
                training.worker_lost(event)
            case happened.GenerationEnded():
                training.generation_ended(event)
            case happened.Regrouped():
                training.regrouped(event)
            case happened.ShardDied(index) if self.phase is not RunPhase.FINISHING:
                training.shard_died(index)
                self._guard(self.parts.shards.replace(index))
            case happened.ShardBack(index, version) if self.phase is not RunPhase.FINISHING:
                self.parts.log.line("info", f"shard {index} goes on at version {version}")
                self._guard(self.parts.shards.serve(index))
            case happened.NodesDraining(nodes):
                training.drain(nodes)
            case happened.StopsEarly(message):
                self._stop_early(message)
            case happened.EvaluationAsked() if self.phase is RunPhase.TRAINING:
                self._guard(self.parts.schedule.take_now(training.progress, training.groups))
            case happened.MetricsDue():
                training.progress.log_metrics()
            case happened.GaugesDue():
                self.parts.log.refresh_gauges()

    def _start(self, least: int) -> None:
        """Start everything from nothing, with at least so many workers."""
        self.phase = RunPhase.STARTING
        self.parts.tasks.start(self._launch(least))

    def _start_again(self) -> None:
        """Begin from the last checkpoint, with as many workers as there is room for."""
        if self.stops_as is not None:
            raise Stopped("before the first step")
        spec = self.parts.config.spec
        self._start(spec.workers.min if spec.algorithm.traits.can_start_with_fewer else spec.workers.count)

    def _open(self, started: happened.StartedRun) -> None:
        """Workers and shards are ready: have the shards serve, and then the workers train."""
        parts, spec = self.parts, self.parts.config.spec
        self.training = training = Training(parts, started, self.scaler, self.incarnation)
        if not started.is_new:
            training.progress.skip_epochs(self.before.epochs)
        if self.before.furthest or spec.checkpoint.resume is None:
            training.progress.log_epochs_after(self.before.furthest)
        training.progress.restore_losses(self.before.losses)
        training.progress.skipped.found.update(self.before.skipped)
        training.progress.skipped.note(started.prepared.skipped)
        parts.log.state(State.RUNNING, "Training", who_trains(len(parts.pool.workers)))
        parts.tasks.post_every(spec.report_every_s, happened.MetricsDue())
        parts.tasks.post_every(KEEP_S, happened.GaugesDue())
        parts.tasks.start(parts.callbacks.follow())
        drains = parts.tasks.repeat(DRAIN_LOOK_S, lambda: happened.NodesDraining(parts.pool.draining()))
        parts.tasks.start_background("watching for nodes that are drained", drains)
        if self.stops_as is not None:
            self._announce_stop(training)
        self._guard(parts.snapshots.follow())
        if parts.pool.shards:
            self.phase = RunPhase.OPENING
            self._open_shards(training)
            return
        self.phase = RunPhase.TRAINING
        if spec.evaluate.every_s:
            self._guard(parts.schedule.meet_by_clock(training.groups, spec.evaluate.every_s))

    def _open_shards(self, training: Training) -> None:
        parts, every_s = self.parts, self.parts.config.spec.evaluate.every_s
        for index in range(len(parts.pool.shards)):
            self._guard(parts.shards.serve(index))
            self._guard(parts.shards.keep_standby(index))
        self._guard(parts.schedule.follow(training.progress))
        if every_s:
            self._guard(parts.schedule.follow_clock(training.progress, every_s))
        self._guard(self._keep_first_snapshots())

    def _collect(self, training: Training) -> None:
        """Nothing is left to train."""
        self.phase = RunPhase.COLLECTING
        training.progress.log_metrics()
        training.progress.log_epochs()
        self.parts.tasks.start(self._take_last_version(training))

    def _finish(self, snapshot: Snapshot, lost_updates: int) -> None:
        """Evaluate the last version, and keep it as a checkpoint and as the finished model."""
        self.phase = RunPhase.FINISHING
        self.lost_updates = lost_updates
        for guard in self.guards:
            guard.cancel()
        progress = self._progress
        if not progress.is_complete() and self.stops_as is None:
            raise RunFailed(f"the workers ended, and only {progress.examples} examples were trained")
        self.parts.tasks.start(self._measure(snapshot, progress.is_complete()))

    # -- stopping, and the end -------------------------------------------------------------------------------------

    def _stop(self, stops_as: State, why: StopReason | None = None) -> None:
        is_first, self.stops_as, self.stop_reason = self.stops_as is None, stops_as, why
        self.parts.schedule.close()
        if self.phase is RunPhase.STARTING:
            raise Stopped("before the first step")
        if is_first and self.training is not None:
            self._announce_stop(self.training)

    def _stop_early(self, message: str) -> None:
        """The run has got no better for long enough."""
        if self.stops_as is not None or self.phase in (RunPhase.COLLECTING, RunPhase.FINISHING):
            return
        self.plateau = message
        self._stop(State.SUCCEEDED)

    def _announce_stop(self, training: Training) -> None:
        if self.stops_as is State.SUCCEEDED:
            self.parts.log.line("info", f"stops early: {self.plateau}")
        else:
            state = State.PAUSING if self.stops_as is State.PAUSED else State.CANCELLING
            self.parts.log.state(state, state.capitalize(), "stopping at the end of a step")
        self.parts.watch.hurry()
        training.stop()

    def _end_well(self, measured: Measured) -> None:
        progress, is_complete = self._progress, self._progress.is_complete()
        state = State.SUCCEEDED if is_complete else self.stops_as or State.CANCELLED
        result = progress.result(self.parts.config.job_id, state, measured)
        self.result = result = result.model_copy(update={
            "wall_s": self.parts.log.at_work_s(),
            "workers": len(self.parts.pool.workers),
            "lost_updates": self.lost_updates,
            "predicted": self.parts.predictions.found,
        })  # fmt: skip
        if state is State.SUCCEEDED:
            self.end = succeeded(progress.epochs, result.warning if is_complete else self.plateau, is_complete)
        else:
            self.end = stopped(state, f"after {progress.examples} examples", self.stop_reason)

    def _fail(self, error: Exception) -> None:
        """Something has failed, and with it the run."""
        if isinstance(error, Stopped):
            self.end = stopped(self.stops_as or State.CANCELLED, str(error), self.stop_reason)
            return
        went_back = self.parts.log.summary().went_back if isinstance(cause_of(error), GoesBack) else 0
        if (text := explanation(error)) is not None:
            with suppress(OSError):  # the disk may be what is full
                self.parts.log.line("error", text)
        self.end = after_failure(error, Circumstances(self.stops_as, self.parts.config.is_trial, went_back))

    @property
    def incarnation(self) -> int:
        """How many coordinators of the run have died."""
        return self.before.deaths + self.is_successor

    @property
    def _progress(self) -> RunProgress:
        assert self.training is not None, "the run has not begun to train"
        return self.training.progress

    # -- what takes time -------------------------------------------------------------------------------------------

    def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin something that goes on for as long as the run trains, and must not fail."""
        self.guards.append(self.parts.tasks.start(work))

    async def _launch(self, least: int) -> None:
        state = State.RECOVERING if self.is_successor else State.STARTING
        saying = self.launcher.say_what_is_awaited(state)
        telling = self.parts.tasks.start_background("saying what the start waits for", saying)
        try:
            started = await self.launcher.start(least, self.before)
        except SpecRejected as error:
            if not self.is_successor:
                raise
            # The spec was accepted once, and may be again when the nodes are back.
            raise RunFailed(f"the run cannot go on with the nodes that are left: {error}") from None
        finally:
            telling.cancel()
        self.parts.events.put_nowait(happened.RunStarted(started))

    async def _find_survivors(self) -> None:
        found = await self.recovery.find_survivors(self.incarnation, self.before.lost)
        self.parts.events.put_nowait(happened.SurvivorsFound(found))

    async def _take_back(self, survivors: happened.Survivors) -> None:
        self.parts.events.put_nowait(happened.RunStarted(await self.recovery.take_back(survivors, self.before)))

    async def _remove_leftovers(self, survivors: happened.Survivors) -> None:
        await self.recovery.remove_leftovers(survivors)
        self.parts.events.put_nowait(happened.LeftoversRemoved())

    async def _keep_first_snapshots(self) -> None:
        await self.parts.shards.keep_first_snapshot()
        self.parts.events.put_nowait(happened.ShardsServe())

    async def _take_last_version(self, training: Training) -> None:
        await self.parts.tracing.over("the run was told to stop" if self.stops_as else "all was trained")
        lost_updates = await self.parts.shards.lost() if self.parts.pool.shards else 0
        snapshot = await self.parts.schedule.last(training.progress, training.groups)
        self.parts.events.put_nowait(happened.LastVersionTaken(snapshot, lost_updates))

    async def _measure(self, snapshot: Snapshot, is_complete: bool) -> None:
        is_end = is_complete or self.stops_as is not State.PAUSED
        finishing = self.parts.snapshots.finish(snapshot, is_complete, is_end)
        measured, _ = await asyncio.gather(finishing, self.parts.predictions.compare())
        self.parts.events.put_nowait(happened.RunMeasured(measured))
