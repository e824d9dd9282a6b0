"""What Ray Tune is given: the trial store as a search algorithm, and asynchronous halving with clean stops."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from service.jobs.queueing.growth import Growth
from service.sweeps.search.sampler import Sampler
from service.sweeps.spec import Halving as HalvingSpec
from service.sweeps.spec import OptunaSearch, Sampled, SweepSpec
from service.sweeps.trial_curve import TrialCurve
from service.sweeps.trial_store import Ending, TrialRow, TrialState, TrialStore
from service.sweeps.turns import Turns
from trainers import EventLogReader, Resources, needs, total_resources

WARM_S = 5.0
"""How long processes are kept for a next trial that has to wait for its turn. The service gives one within a second or
two where nobody stands before it."""


class TrialSearcher(Searcher):  # type: ignore[misc]
    """Hands out the trials that are not done yet, as they fit, including those that are added in the meantime."""

    def __init__(
        self, store: TrialStore, growth: Growth, is_open: Callable[[], bool], close: Callable[[], bool]
    ) -> None:
        """growth: What the cluster may become: trials are handed out that make it grow."""
        super().__init__()
        self.store = store
        self.driver = store.driver
        self.growth = growth
        self.is_open = is_open
        """Whether more trials may start."""
        self.close = close
        """Called when nothing is left to do; returns whether nothing was added at the same moment."""
        spec = store.spec
        self.concurrent = spec.limits.concurrent
        self.sampler = Sampler(store, spec, spec.search) if isinstance(spec.search, Sampled) else None
        self.handed_out: dict[str, tuple[str, Resources]] = {}  # Tune's id -> ours, and what it needs
        self.turns = Turns(store)
        self.takes_turns = self.turns.are_needed
        self.served_s = time.monotonic()
        """When a trial was there last that could be handed out."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune would save its parts for a restore, which is never requested, since the store has the state."""
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrialSearcher":
        """Itself: Tune would work on a copy, but there is one store."""
        return self

    def suggest(self, trial_id: str) -> Any:
        """The next configuration; None while nothing fits or is queued; FINISHED at the end."""
        row = self._next() if self.is_open() else None
        if row is not None:
            self.served_s = time.monotonic()
            self.handed_out[trial_id] = (row.id, needs(row.job_spec.train))
            return {"folder": str(self.store.folder), "trial": row.id, "driver": self.driver}
        return Searcher.FINISHED if not self.handed_out and (self.close() or self.waits_in_vain) else None

    @property
    def waits_in_vain(self) -> bool:
        """Whether the queue has let others pass for so long that processes kept warm would stand in their way."""
        return self.takes_turns and time.monotonic() - self.served_s > WARM_S

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the trial's resources."""
        self.handed_out.pop(trial_id, None)
        self.served_s = time.monotonic()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing: a trial's results go into the store."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the store is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the store is the state."""

    def _next(self) -> TrialRow | None:
        if self.concurrent is not None and len(self.handed_out) >= self.concurrent:
            return None
        taken = {ours for ours, _ in self.handed_out.values()}
        row = self.store.next_queued(but=taken)
        if row is None and self.sampler is not None and self.sampler.propose():
            row = self.store.next_queued(but=taken)
        if self.takes_turns and row is not None:  # the queue knows what fits
            return self.store.next_queued(but=taken | self.turns.excluded(self.store.progress()))
        if row is None or not self.handed_out:
            return row
        held = [amount for _, amount in self.handed_out.values()] + [needs(row.job_spec.train)]
        wanted = Resources(sum(amount.cpus for amount in held), sum(amount.gpus for amount in held))
        total = total_resources()
        return row if wanted.fits(total + self.growth.beyond(total)) else None


class GivesWay(FIFOScheduler):  # type: ignore[misc]
    """Ends the processes that Tune keeps warm for a next trial where the queue lets others pass."""

    searcher: TrialSearcher | None = None

    def choose_trial_to_run(self, controller: Any) -> Any:
        """Called again and again while trials run."""
        if self.searcher is not None and self.searcher.waits_in_vain:
            controller._tune_controller._cleanup_cached_actors(force_all=True)  # Tune has no public way
        return super().choose_trial_to_run(controller)


class Halving(GivesWay, ASHAScheduler):  # type: ignore[misc]
    """Asks a trial for a clean stop, with a checkpoint, where Tune would kill it."""

    def __init__(self, store: TrialStore, search: HalvingSpec, epochs: int) -> None:
        super().__init__(
            time_attr="epoch",
            metric="error",
            mode="min",
            max_t=epochs,
            grace_period=min(search.grace_epochs, epochs),
            reduction_factor=search.reduction,
        )
        self.store = store

    def learn(self) -> None:
        """Take in what the trials came to that have ended under an earlier driver."""
        for row in self.store.trials():
            if row.state.has_ended:
                trial, curve = SimpleNamespace(trial_id=row.id, stub=False), TrialCurve(self.store.spec.report)
                super().on_trial_add(None, trial)
                for event in EventLogReader(self.store.run_dir(row.id)).read():
                    if curve.add(event) and curve.error is not None:
                        super().on_trial_result(None, trial, {"epoch": curve.points[-1].epoch, "error": curve.error})

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Continue always; a trial among the worse ones is asked to stop."""
        verdict = super().on_trial_result(controller, trial, result)
        if verdict == TrialScheduler.STOP and result["fraction"] < 1:
            metric = self.store.metric  # Tune hands a scheduler a flattened result, without what is nested
            compared = f"{metric.name} {metric.value(result['error']):.4f}"
            message = f"stopped: at epoch {result['epoch']:g} its {compared} was not among the best"
            self.store.ask(trial.config["trial"], Ending(state=TrialState.STOPPED, reason="Asha", message=message))
        return str(TrialScheduler.CONTINUE)


def scheduler(store: TrialStore, spec: SweepSpec, searcher: TrialSearcher | None = None) -> TrialScheduler:
    """Decides which of the running trials go on."""
    found = GivesWay()
    halving = spec.search.halving if isinstance(spec.search, OptunaSearch) else spec.search
    if isinstance(halving, HalvingSpec):
        found = Halving(store, halving, max([spec.job.epochs, *(row.job["epochs"] for row in store.trials())]))
        found.learn()
    found.searcher = searcher
    return found


def tuner(trainable: Any, searcher: Searcher, chooses: TrialScheduler, callback: tune.Callback) -> tune.Tuner:
    """Tune with a search algorithm that says itself when it is finished."""
    from ray.tune.search import ConcurrencyLimiter

    store = searcher.store
    return tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            # The limiter is never reached: Tune starts as many trials at a time as it allows, one if there is none.
            search_alg=ConcurrencyLimiter(searcher, max_concurrent=1000),
            scheduler=chooses,
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name="tune", storage_path=str(store.folder.resolve()), callbacks=[callback], verbose=0
        ),
    )


def _name(trial: Any) -> str:
    return str(trial.config["trial"])
