"""The driver of a sweep: Ray Tune in an actor of its own, which outlives the process that started it.

It may die at any moment. All that it knows is in the trial store and in the trials' logs, where a new driver finds what
is left to do.
"""

import os
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.jobs.queueing.growth import Growth
from service.scaling.divergence import Divergence, diverges_from_baseline
from service.scaling.evidence import DIVERGED, RECIPE, Point
from service.scaling.metric import Metric
from service.status import Status
from service.sweeps.axes import base_batch
from service.sweeps.hopeless import common_failure, without_success
from service.sweeps.log import SweepLog
from service.sweeps.search.searcher import TrialSearcher, scheduler, tuner
from service.sweeps.trial import TrialRun, end_log
from service.sweeps.trial_curve import read_curve
from service.sweeps.trial_process import end_orphans, forget_processes
from service.sweeps.trial_store import SWEEP_CANCELLED, Ending, TrialRow, TrialState, TrialStore
from trainers import State, cleanup_run, remove_files

NAMESPACE = "millrace"
Variant = tuple[tuple[str, str], ...]
ANSWER_S = 10.0
OUT_OF_TIME = Ending(state=TrialState.STOPPED, reason="TimeLimit", message="stopped: the sweep's time was over")


class SweepDriver:
    """Runs a sweep to its end on a thread, while its methods answer."""

    def __init__(self, folder: str, growth: Growth, trainable: Any = None) -> None:
        self.store = TrialStore(Path(folder))
        self.growth = growth
        self.trainable = trainable or TrialRun
        threading.Thread(target=self._run, name="sweep", daemon=True).start()

    def ping(self) -> int:
        """Proof of life: its process id."""
        return os.getpid()

    def _run(self) -> None:
        try:
            SweepRunner(self.store, self.growth).run(self.trainable)
        except BaseException:
            trace = traceback.format_exc()[-4000:]
            with suppress(Exception):
                self._fail(trace)
        ray.kill(ray.get_runtime_context().current_actor)  # frees its name for the driver of an extension

    def _fail(self, trace: str) -> None:
        status = Status(State.FAILED, "DriverFailed", trace.strip().splitlines()[-1])
        log = SweepLog(self.store)
        log.line("error", trace)
        if self.store.close(status, with_queued=True):
            log.state(status)
        log.close()


class SweepRunner(tune.Callback):  # type: ignore[misc]
    """What the driver does while Tune runs: keeps the store, writes the log, and stops trials."""

    def __init__(self, store: TrialStore, growth: Growth) -> None:
        self.store = store
        self.growth = growth
        self.spec = store.spec
        self.log = SweepLog(store)
        self.searcher: TrialSearcher
        self.ticked_s = time.monotonic()
        self.halting: Ending | None = None
        """How the trials end that are stopped because the whole sweep ends."""
        self.final: Status | None = None
        self.baseline: dict[Variant, dict[str, list[Point]]] = {}
        self.metric_known = False  # what the trials are compared by, from the first evaluation on

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune would save its parts for a restore, which is never requested, since the store has the state."""
        return {}

    def run(self, trainable: Any) -> None:
        """Run the sweep to its end."""
        recover(self.store)
        self._read_baseline()
        self.log.changes()
        running = Status(State.RUNNING, "Running", "its trials run")
        if self.store.move((State.QUEUED,), running):
            self.log.state(running)
        self.searcher = TrialSearcher(self.store, self.growth, self._is_open, self._close)
        self._tick()
        tuner(trainable, self.searcher, scheduler(self.store, self.spec, self.searcher), self).fit()
        if self.final is None:  # its trials wait for their turn; whoever gives one starts another driver
            self.store.rest()
            self.log.close()
            return
        remove_shared_files(self.store.get("id"))
        forget_processes(self.store)
        self.log.changes()
        self.log.progress(at_once=True)
        self.log.state(self.final)
        self.log.close()

    # -- what Tune calls ------------------------------------------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Tune has started a trial's processes."""
        self.log.changes()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """A trial reports an evaluation, or its end."""
        ours, ended = trial.config["trial"], result["ended"]
        self._compare(result)
        error = result["error"] if result["test_error"] is not None else None
        if ended is None:
            self.store.note(ours, result["fraction"], error)
            self._judge(ours)
        else:
            ending = Ending(state=TrialState(ended[0]), reason=ended[1], message=ended[2])
            before = self.store.trial(ours)
            if before is not None and before.state.has_ended:  # it was cancelled before it started
                ending = Ending(state=before.state, reason=before.reason, message=before.message)
            end_log(self.store.run_dir(ours), ending)
            self.store.note(ours, result["fraction"], error)
            self.store.finish(ours, ending, error)
            self._give_up()
        row = self.store.trial(ours)
        assert row is not None
        metric = self.store.metric
        figures = {name: result[name] for name in ("epoch", "examples", "train_loss", "test_error")}
        value = None if row.error is None else metric.value(row.error)
        self.log.trial(row, **figures, metric=metric.name, value=value)
        self.log.progress(at_once=ended is not None)

    def _give_up(self) -> None:
        """Run no more trials where all have failed for a reason that they have in common."""
        trials = self.store.trials()
        if self.halting is not None or (failed := common_failure(trials)) is None:
            return
        if any(trial.state is TrialState.QUEUED for trial in trials):
            self.log.line("error", f"all trials failed with {failed.reason}, whatever their axes: no other begins")
        self.halting = Ending(state=TrialState.CANCELLED, reason=failed.reason, message="the trials before it failed")

    def _compare(self, result: dict[str, Any]) -> None:
        """Note what the trials are compared by, once one has measured it, or say that they do not measure it."""
        if self.metric_known or not result["measured"]:
            return
        self.metric_known = True
        if result["metric"] is not None:
            self.store.compares(Metric.model_validate(result["metric"]))
            return
        there = ", ".join(result["measured"])
        self.log.line("error", f"report.metric: no trial measures {self.spec.report.metric!r}; they measure {there}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """The process of a trial died, or raised."""
        ours = trial.config["trial"]
        cause = (str(trial.get_error() or "").strip().splitlines() or ["it did not say why"])[-1]
        ending = Ending(state=TrialState.FAILED, reason="TrialDied", message=f"the trial's process failed: {cause}")
        cleanup_run(ours)
        end_log(self.store.run_dir(ours), ending)
        self.store.finish(ours, ending)
        self.log.changes()

    def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Called again and again."""
        if time.monotonic() - self.ticked_s > 0.5:
            self._tick()

    # -- what is to be done ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        used_s, self.ticked_s = self.store.use(now - self.ticked_s), now
        self.spec = self.store.spec  # an extension may have changed the limits
        self.searcher.concurrent = self.spec.limits.concurrent
        limit_s = self.spec.limits.time_s
        if self.halting is None and self.store.state is State.CANCELLING:
            self.halting = SWEEP_CANCELLED
            self.log.state(Status(State.CANCELLING, "CancelRequested", "stops its trials"))
        elif self.halting is None and limit_s is not None and used_s > limit_s:
            self.halting = OUT_OF_TIME
        if self.halting is not None:
            stopped = {TrialState.RUNNING} | ({TrialState.QUEUED} if self.halting is SWEEP_CANCELLED else set())
            for one in self.store.progress():
                if one.state in stopped:
                    self.store.ask(one.id, self.halting)
        self.log.changes()
        self.log.progress()

    def _is_open(self) -> bool:
        self.on_step_end(0, [])  # Tune does not call that while it waits for a first trial
        return self.halting is None

    def _close(self) -> bool:
        """End the sweep, if nothing was added just now. Returns whether it has ended."""
        counts = self.store.counts()
        done = counts[TrialState.SUCCEEDED]
        if self.halting is SWEEP_CANCELLED:
            final = Status(State.CANCELLED, "Cancelled", f"cancelled after {done} trials")
        elif self.halting is OUT_OF_TIME:
            left = counts[TrialState.QUEUED]
            message = f"{done} trials succeeded; {left} were not run when its time was over"
            final = Status(State.SUCCEEDED, "TimeLimit", message)
        elif (failed := without_success(self.store.trials())) is not None:
            left = counts[TrialState.QUEUED]
            final = replace(failed, message=f"{failed.message}; {left} were not begun") if left else failed
        else:
            others = {state.value.lower(): counts[state] for state in TrialState if state is not TrialState.SUCCEEDED}
            rest = "".join(f", {count} {name}" for name, count in others.items() if count)
            final = Status(State.SUCCEEDED, "Succeeded", f"{done} trials succeeded{rest}")
        if not self.store.close(final, with_queued=self.halting is not None):
            return False
        self.final = final
        return True

    def _judge(self, ours: str) -> None:
        """Stop a trial whose curve has separated from the baseline's (paper 4, section 5.3)."""
        wanted = self.spec.stop.diverges_from_baseline
        row = self.store.trial(ours)
        if not wanted or row is None or self.store.asked(ours) is not None:
            return
        points = list(read_curve(self.store.run_dir(ours)).points)
        mine = _variant(row)
        if self._is_baseline(row):
            self.baseline.setdefault(mine, {})[ours] = points
            return
        baseline = list(self.baseline.get(mine, {}).values())
        limits = wanted if isinstance(wanted, Divergence) else None
        found = diverges_from_baseline(points, baseline, row.job["epochs"], limits)
        if found.separated:
            why = f"stopped: its curve left the baseline's: {found.why}"
            self.store.ask(ours, Ending(state=TrialState.STOPPED, reason=DIVERGED, message=why))

    def _read_baseline(self) -> None:
        """Read the baseline trials that ended under an earlier driver."""
        for row in self.store.trials():
            if row.state is TrialState.SUCCEEDED and self._is_baseline(row):
                points = list(read_curve(self.store.run_dir(row.id)).points)
                self.baseline.setdefault(_variant(row), {})[row.id] = points

    def _is_baseline(self, row: TrialRow) -> bool:
        at_base = row.job_spec.update_batch == base_batch(self.spec)
        return at_base and row.settings.get("multiple", 1) == 1


def _variant(row: TrialRow) -> Variant:
    """What two trials must have in common to be compared: every axis but those of the recipe and the seed."""
    return tuple(sorted((axis, str(value)) for axis, value in row.settings.items() if axis not in RECIPE))


def start_driver(sweep_id: str, folder: Path, growth: Growth, trainable: Any = None) -> Any:
    """Start the driver of a sweep on this node, where its folder is, or find the live one.

    growth: What the cluster may become. trainable: Replaces the class of the trials.
    """
    here = ray.get_runtime_context().get_node_id()
    actor = ray.remote(SweepDriver).options(
        name=f"{sweep_id}/driver",
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=0,
        max_concurrency=4,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return actor.remote(str(folder.resolve()), growth, trainable)


def is_alive(sweep_id: str) -> bool:
    """Whether the driver of a sweep is alive; one that is slow to answer is."""
    try:
        ray.get(ray.get_actor(f"{sweep_id}/driver", NAMESPACE).ping.remote(), timeout=ANSWER_S)
    except (ValueError, ray.exceptions.ActorDiedError, ray.exceptions.OutOfMemoryError):
        return False
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return True
    return True


def kill_driver(sweep_id: str) -> None:
    """Kill the driver, and with it the processes of every trial, which it owns."""
    with suppress(ValueError):
        ray.kill(ray.get_actor(f"{sweep_id}/driver", NAMESPACE))


def wait_for_exit(sweep_id: str) -> None:
    """Wait until Ray has noticed that the driver and what it owned have died."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
        if not any(name.startswith(f"{sweep_id}/") for name in names):
            return
        time.sleep(0.05)


def recover(store: TrialStore) -> None:
    """Clean up after a dead driver: store the ends of trials that ended unseen, and queue the others again."""
    store.new_driver()
    end_orphans(store)
    cleanup_run(store.get("id"), but="driver")
    for row in store.trials():
        if row.state is not TrialState.RUNNING:
            continue
        cleanup_run(row.id)
        curve = read_curve(store.run_dir(row.id), store.spec.report)
        if curve.final is None:
            store.requeue(row.id)
        else:
            store.finish(row.id, Ending.of(curve.final), curve.error)


def remove_shared_files(sweep_id: str) -> None:
    """Remove the data that the trials shared, on every node."""
    remove_files(sweep_id)
    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    task = ray.remote(num_cpus=0, max_retries=0)(_remove)
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(sweep_id)
        for node in nodes
    ]
    with suppress(Exception):  # a node that is gone has nothing left
        ray.get(refs, timeout=30)


def _remove(sweep_id: str) -> None:
    remove_files(sweep_id)
