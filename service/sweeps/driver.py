"""The sweep's driver: Ray Tune in an actor of its own, which outlives whoever started it, and may die at any moment.

Whatever it knows is in the ledger and in the trials' logs: a new driver finds there what is not done yet.
"""

import os
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.scaling.divergence import Divergence, diverges_from_baseline
from service.scaling.evidence import DIVERGED, RECIPE, Point
from service.sweeps.axes import base_batch
from service.sweeps.control import SWEEP_CANCELLED
from service.sweeps.curve import read_curve
from service.sweeps.ledger import Ending, Ledger, TrialRow, TrialState
from service.sweeps.log import SweepLog
from service.sweeps.search import FromLedger, scheduler, tuner
from service.sweeps.trial import TrialRun, end_log
from trainers import State, remove_files, sweep_run

NAMESPACE = "millrace"
Variant = tuple[tuple[str, str], ...]
ANSWER_S = 10.0
OUT_OF_TIME = Ending(state=TrialState.STOPPED, reason="TimeLimit", message="the sweep's time was over")


class SweepDriver:
    """Runs a sweep to its end, on a thread; its methods answer meanwhile."""

    def __init__(self, folder: str, trainable: Any = None) -> None:
        self.ledger = Ledger(Path(folder))
        self.trainable = trainable or TrialRun
        threading.Thread(target=self._run, name="sweep", daemon=True).start()

    def ping(self) -> int:
        """Proof of life: its process id."""
        return os.getpid()

    def _run(self) -> None:
        try:
            Conduct(self.ledger).run(self.trainable)
        except BaseException:
            told = traceback.format_exc()[-4000:]
            with suppress(Exception):
                self._fail(told)
        ray.kill(ray.get_runtime_context().current_actor)  # its name is free then, for the driver of an extension

    def _fail(self, told: str) -> None:
        end = (State.FAILED, "DriverFailed", told.strip().splitlines()[-1])
        log = SweepLog(self.ledger)
        log.line("error", told)
        if self.ledger.close_books(*end, with_queued=True):
            log.state(*end)
        log.close()


class Conduct(tune.Callback):  # type: ignore[misc]
    """What the driver does while Tune runs: keeps the ledger, tells the log, stops what is to be stopped."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.spec = ledger.spec
        self.log = SweepLog(ledger)
        self.searcher: FromLedger
        self.ticked_s = time.monotonic()
        self.halting: Ending | None = None
        self.end: tuple[State, str, str] | None = None
        self.baseline: dict[Variant, dict[str, list[Point]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes its parts down for a restore that is never asked for: the ledger is what counts."""
        return {}

    def run(self, trainable: Any) -> None:
        """To the end of the sweep."""
        recover(self.ledger)
        self._read_baseline()
        self.log.changes()
        if self.ledger.move((State.QUEUED,), State.RUNNING, "Running", "its trials run"):
            self.log.state(State.RUNNING, "Running", "its trials run")
        self.searcher = FromLedger(self.ledger, self._is_open, self._close)
        self._tick()
        tuner(trainable, self.searcher, scheduler(self.ledger, self.spec), self).fit()
        forget_pool(self.ledger.get("id"))
        assert self.end is not None
        self.log.changes()
        self.log.progress(at_once=True)
        self.log.state(*self.end)
        self.log.close()

    # -- what Tune calls ------------------------------------------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """A trial has its processes."""
        self.log.changes()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        """An evaluation, or the end."""
        ours, ended = trial.config["trial"], result["ended"]
        error = result["error"] if result["test_error"] is not None else None
        if ended is None:
            self.ledger.note(ours, result["share"], error)
            self._judge(ours)
        else:
            ending = Ending(state=TrialState(ended[0]), reason=ended[1], message=ended[2])
            before = self.ledger.trial(ours)
            if before is not None and before.state.has_ended:  # while it waited for its place
                ending = Ending(state=before.state, reason=before.reason, message=before.message)
            end_log(self.ledger.run_dir(ours), ending)
            self.ledger.note(ours, result["share"], error)
            self.ledger.finish(ours, ending, error)
        row = self.ledger.trial(ours)
        assert row is not None
        self.log.trial(row, **{name: result[name] for name in ("epoch", "examples", "train_loss", "test_error")})
        self.log.progress(at_once=ended is not None)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Its process died, or raised."""
        ours = trial.config["trial"]
        told = (str(trial.get_error() or "").strip().splitlines() or ["it did not say why"])[-1]
        ending = Ending(state=TrialState.FAILED, reason="TrialDied", message=f"the trial's process failed: {told}")
        sweep_run(ours)
        end_log(self.ledger.run_dir(ours), ending)
        self.ledger.finish(ours, ending)
        self.log.changes()

    def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Again and again."""
        if time.monotonic() - self.ticked_s > 0.5:
            self._tick()

    # -- what is to be done ---------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.monotonic()
        used_s, self.ticked_s = self.ledger.use(now - self.ticked_s), now
        self.spec = self.ledger.spec  # an extension may have changed the limits
        self.searcher.concurrent = self.spec.limits.concurrent
        limit_s = self.spec.limits.time_s
        if self.halting is None and self.ledger.state is State.CANCELLING:
            self.halting = SWEEP_CANCELLED
            self.log.state(State.CANCELLING, "CancelRequested", "stops its trials")
        elif self.halting is None and limit_s is not None and used_s > limit_s:
            self.halting = OUT_OF_TIME
        if self.halting is not None:
            stopped = {TrialState.RUNNING} | ({TrialState.QUEUED} if self.halting is SWEEP_CANCELLED else set())
            for one in self.ledger.standing():
                if one.state in stopped:
                    self.ledger.ask(one.id, self.halting)
        self.log.changes()
        self.log.progress()

    def _is_open(self) -> bool:
        return self.halting is None

    def _close(self) -> bool:
        """Nothing is left to do, unless something was added just now."""
        counts = self.ledger.counts()
        done = counts[TrialState.SUCCEEDED]
        if self.halting is SWEEP_CANCELLED:
            end = (State.CANCELLED, "Cancelled", f"cancelled after {done} trials")
        elif self.halting is OUT_OF_TIME:
            left = counts[TrialState.QUEUED]
            end = (State.SUCCEEDED, "TimeLimit", f"{done} trials succeeded; {left} were not run when its time was over")
        else:
            others = {state.value.lower(): counts[state] for state in TrialState if state is not TrialState.SUCCEEDED}
            told = ", ".join(f"{count} {name}" for name, count in others.items() if count)
            end = (State.SUCCEEDED, "Succeeded", f"{done} trials succeeded" + (f", {told}" if told else ""))
        if not self.ledger.close_books(*end, with_queued=self.halting is not None):
            return False
        self.end = end
        return True

    def _judge(self, ours: str) -> None:
        """Stop a trial whose curve has separated from the baseline's (paper 4, section 5.3)."""
        wanted = self.spec.stop.diverges_from_baseline
        row = self.ledger.trial(ours)
        if not wanted or row is None or self.ledger.asked(ours) is not None:
            return
        points = list(read_curve(self.ledger.run_dir(ours)).points)
        mine = _variant(row)
        if self._is_baseline(row):
            self.baseline.setdefault(mine, {})[ours] = points
            return
        baseline = list(self.baseline.get(mine, {}).values())
        limits = wanted if isinstance(wanted, Divergence) else None
        found = diverges_from_baseline(points, baseline, row.job["epochs"], limits)
        if found.separated:
            self.ledger.ask(ours, Ending(state=TrialState.STOPPED, reason=DIVERGED, message=found.why))

    def _read_baseline(self) -> None:
        """What an earlier driver saw of it."""
        for row in self.ledger.trials():
            if row.state is TrialState.SUCCEEDED and self._is_baseline(row):
                points = list(read_curve(self.ledger.run_dir(row.id)).points)
                self.baseline.setdefault(_variant(row), {})[row.id] = points

    def _is_baseline(self, row: TrialRow) -> bool:
        at_base = row.job_spec.update_batch == base_batch(self.spec)
        return at_base and row.settings.get("multiple", 1) == 1


def _variant(row: TrialRow) -> Variant:
    """What two trials must have in common to be compared: all that was varied but the recipe and the seed."""
    return tuple(sorted((axis, str(value)) for axis, value in row.settings.items() if axis not in RECIPE))


def start_driver(sweep_id: str, folder: Path, trainable: Any = None) -> Any:
    """Start the sweep's driver on this node, where its folder is; or the one that lives."""
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
    return actor.remote(str(folder.resolve()), trainable)


def is_alive(sweep_id: str) -> bool:
    """Whether the sweep's driver lives; one that is slow to answer does."""
    try:
        ray.get(ray.get_actor(f"{sweep_id}/driver", NAMESPACE).ping.remote(), timeout=ANSWER_S)
    except (ValueError, ray.exceptions.ActorDiedError):
        return False
    except (ray.exceptions.ActorUnavailableError, ray.exceptions.GetTimeoutError):
        return True
    return True


def kill_driver(sweep_id: str) -> None:
    """End the driver at once, and with it every trial's processes, which it owns."""
    with suppress(ValueError):
        ray.kill(ray.get_actor(f"{sweep_id}/driver", NAMESPACE))


def wait_until_gone(sweep_id: str) -> None:
    """Until Ray has noticed that the driver and what it owned have died."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        names = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
        if not any(name.startswith(f"{sweep_id}/") for name in names):
            return
        time.sleep(0.05)


def recover(ledger: Ledger) -> None:
    """Give back what a dead driver left: trials that ended unseen have ended, the others wait again."""
    sweep_run(ledger.get("id"), but="driver")
    for row in ledger.trials():
        if row.state is not TrialState.RUNNING:
            continue
        sweep_run(row.id)
        curve = read_curve(ledger.run_dir(row.id))
        if curve.ended is None:
            ledger.put_back(row.id)
        else:
            state, reason, message = curve.ended
            ledger.finish(row.id, Ending(state=TrialState(state), reason=reason, message=message), curve.error)


def forget_pool(sweep_id: str) -> None:
    """Remove the data that the trials shared, on every node."""
    _forget(sweep_id)
    here = ray.get_runtime_context().get_node_id()
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    task = ray.remote(num_cpus=0, max_retries=0)(_forget)
    refs = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(sweep_id)
        for node in nodes
    ]
    with suppress(Exception):  # a node that is gone has nothing left
        ray.get(refs, timeout=30)


def _forget(sweep_id: str) -> None:
    remove_files(sweep_id)
