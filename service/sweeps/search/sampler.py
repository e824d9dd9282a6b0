"""Optuna chooses each next configuration by the results of the trials before (its ask-and-tell interface)."""

from typing import Any

from service.errors import SpecInvalid
from service.sweeps.axes import configuration
from service.sweeps.spec import OptunaSearch, SweepSpec
from service.sweeps.trial_store import TrialRow, TrialStore

TRIES = 50
"""After so many proposals in a row that were run already, or are invalid, the search counts as exhausted."""


class Sampler:
    """Adds what Optuna proposes to the store. A new sampler learns from the store what was tried."""

    def __init__(self, store: TrialStore, spec: SweepSpec, search: OptunaSearch) -> None:
        self.store = store
        self.spec = spec
        self.search = search
        self.exhausted = False

    def propose(self) -> bool:
        """Add one configuration. Returns False if the limit is reached or nothing new is proposed."""
        rows = self.store.trials()
        if self.exhausted or len(rows) >= self.spec.limits.trials:
            return False
        study = self._study(rows)
        space = self._space()
        for _ in range(TRIES):
            trial = study.ask(space)
            settings = {axis: self.spec.axes[axis][index] for axis, index in trial.params.items()}
            try:
                if self.store.add(self.spec, [configuration(self.spec, settings)]):
                    return True
            except SpecInvalid:
                study.tell(trial, self._worst(rows))
                continue
            study.tell(trial, self._known(settings, rows))
        self.exhausted = True
        return False

    def _study(self, rows: list[TrialRow]) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=self.search.seed + len(rows), constant_liar=True)
        study = optuna.create_study(sampler=sampler, direction="minimize")
        space, worst = self._space(), self._worst(rows)
        for row in rows:
            params = {axis: self._index(axis, row) for axis in self.spec.axes}
            if None not in params.values() and row.state.has_ended:
                error = worst if row.error is None else row.error
                study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=error))
        return study

    def _space(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution

        return {axis: CategoricalDistribution([*range(len(values))]) for axis, values in self.spec.axes.items()}

    def _index(self, axis: str, row: TrialRow) -> int | None:
        values = self.spec.axes[axis]
        return values.index(row.settings[axis]) if row.settings.get(axis) in values else None

    def _known(self, settings: dict[str, Any], rows: list[TrialRow]) -> float:
        key = configuration(self.spec, settings).key
        found = {configuration(self.spec, row.settings).key: row.error for row in rows}
        error = found.get(key)
        return self._worst(rows) if error is None else error

    def _worst(self, rows: list[TrialRow]) -> float:
        """What counts for a trial without a result: an error of 100 %, or of another metric the worst so far."""
        known = [row.error for row in rows if row.error is not None]
        return 1.0 if self.store.metric.is_error else max(known, default=0.0)
