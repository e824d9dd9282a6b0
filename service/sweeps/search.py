"""What Ray Tune is given: the ledger as a search algorithm, and asynchronous halving that stops trials cleanly."""

from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from service.sweeps.ledger import Ending, Ledger, TrialRow, TrialState
from service.sweeps.sampler import Sampler
from service.sweeps.spec import AshaSearch, OptunaSearch, SweepSpec
from trainers import Resources, needs, total_resources


class FromLedger(Searcher):  # type: ignore[misc]
    """Hands out what is not done yet, as it fits; what is added to the ledger in the meantime too."""

    def __init__(self, ledger: Ledger, is_open: Callable[[], bool], close: Callable[[], bool]) -> None:
        super().__init__()
        self.ledger = ledger
        self.is_open = is_open
        """Whether anything may be started."""
        self.close = close
        """Called when nothing is left to do; whether nothing was added at the same moment."""
        spec = ledger.spec
        self.concurrent = spec.limits.concurrent
        self.sampler = Sampler(ledger, spec, spec.search) if isinstance(spec.search, OptunaSearch) else None
        self.handed_out: dict[str, tuple[str, Resources]] = {}  # Tune's id -> ours, and what it needs

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes its parts down for a restore that is never asked for: the ledger is what counts."""
        return {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "FromLedger":
        """Tune works on a copy; there is one ledger."""
        return self

    def suggest(self, trial_id: str) -> Any:
        """The next configuration; None while nothing fits or waits; FINISHED."""
        row = self._next() if self.is_open() else None
        if row is not None:
            self.handed_out[trial_id] = (row.id, needs(row.job_spec.train))
            return {"folder": str(self.ledger.folder), "trial": row.id}
        return Searcher.FINISHED if not self.handed_out and self.close() else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Its place is free."""
        self.handed_out.pop(trial_id, None)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing: what a trial tells goes into the ledger."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the ledger is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: the ledger is the state."""

    def _next(self) -> TrialRow | None:
        if self.concurrent is not None and len(self.handed_out) >= self.concurrent:
            return None
        taken = {ours for ours, _ in self.handed_out.values()}
        row = self.ledger.waiting(but=taken)
        if row is None and self.sampler is not None and self.sampler.propose():
            row = self.ledger.waiting(but=taken)
        if row is None or not self.handed_out:
            return row
        held = [amount for _, amount in self.handed_out.values()] + [needs(row.job_spec.train)]
        wanted = Resources(sum(amount.cpus for amount in held), sum(amount.gpus for amount in held))
        return row if wanted.fits(total_resources()) else None


class Halving(ASHAScheduler):  # type: ignore[misc]
    """Asks for a clean stop, with a checkpoint, where Tune would cut the trial off."""

    def __init__(self, ledger: Ledger, search: AshaSearch, epochs: int) -> None:
        super().__init__(
            time_attr="epoch",
            metric="error",
            mode="min",
            max_t=epochs,
            grace_period=min(search.grace_epochs, epochs),
            reduction_factor=search.reduction,
        )
        self.ledger = ledger

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Go on; whoever is among the worse ones is asked to stop."""
        verdict = super().on_trial_result(controller, trial, result)
        if verdict == TrialScheduler.STOP and result["share"] < 1:
            told = f"at epoch {result['epoch']:g} its error {result['error']:.4f} was not among the best"
            self.ledger.ask(trial.config["trial"], Ending(state=TrialState.STOPPED, reason="Asha", message=told))
        return str(TrialScheduler.CONTINUE)


def scheduler(ledger: Ledger, spec: SweepSpec) -> TrialScheduler:
    """Which of the running trials go on."""
    if isinstance(spec.search, AshaSearch):
        return Halving(ledger, spec.search, max((row.job["epochs"] for row in ledger.trials()), default=1))
    return FIFOScheduler()


def tuner(trainable: Any, searcher: Searcher, chooses: TrialScheduler, callback: tune.Callback) -> tune.Tuner:
    """Tune over a search algorithm that says itself when it is over."""
    from ray.tune.search import ConcurrencyLimiter

    ledger = searcher.ledger
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
            name="tune", storage_path=str(ledger.folder.resolve()), callbacks=[callback], verbose=0
        ),
    )


def _name(trial: Any) -> str:
    return str(trial.config["trial"])
