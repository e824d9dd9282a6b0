"""Each next configuration is chosen by the results of the trials before."""

from typing import Any, Protocol

from pydantic import JsonValue

from service.errors import SpecInvalid
from service.sweeps.axes import configuration
from service.sweeps.search.bohb_study import BohbStudy
from service.sweeps.search.optuna_study import OptunaStudy
from service.sweeps.spec import BohbSearch, OptunaSearch, SweepSpec
from service.sweeps.trial_curve import read_curve
from service.sweeps.trial_store import TrialRow, TrialStore

TRIES = 50
"""After so many proposals in a row that were run already, or are invalid, the search counts as exhausted."""


class Study(Protocol):
    """What a library knows of the trials so far."""

    def ask(self) -> dict[str, JsonValue]:
        """The settings that it would try next."""

    def tell(self, cost: float) -> None:
        """What those come to that it was asked for last, which is known without running them."""


class Sampler:
    """Adds what is proposed to the store. A new sampler learns from the store what was tried."""

    def __init__(self, store: TrialStore, spec: SweepSpec, search: OptunaSearch | BohbSearch) -> None:
        self.store = store
        self.spec = spec
        self.search = search
        self.exhausted = False
        self.read: dict[str, dict[int, float]] = {}
        """Trials that have ended -> their costs at the ends of epochs."""

    def propose(self) -> bool:
        """Add one configuration. Returns False if the limit is reached or nothing new is proposed."""
        rows = self.store.trials()
        if self.exhausted or len(rows) >= self.spec.limits.trials:
            return False
        study = self.study(rows)
        for _ in range(TRIES):
            settings = study.ask()
            try:
                if self.store.add(self.spec, [configuration(self.spec, settings)]):
                    return True
            except SpecInvalid:
                study.tell(self._worst(rows))
                continue
            study.tell(self._known(settings, rows))
        self.exhausted = True
        return False

    def study(self, rows: list[TrialRow]) -> Study:
        """All that these trials have shown."""
        if isinstance(self.search, BohbSearch):
            return BohbStudy(self.spec, self.search, rows, self._costs)
        return OptunaStudy(self.spec, self.search, rows, self._worst(rows))

    def _costs(self, row: TrialRow) -> dict[int, float]:
        """Of a trial, at the ends of its epochs."""
        if row.id in self.read:
            return self.read[row.id]
        costs = read_curve(self.store.run_dir(row.id), self.spec.report).costs
        if row.state.has_ended:
            self.read[row.id] = costs
        return costs

    def _known(self, settings: dict[str, Any], rows: list[TrialRow]) -> float:
        key = configuration(self.spec, settings).key
        found = {configuration(self.spec, row.settings).key: row.error for row in rows}
        error = found.get(key)
        return self._worst(rows) if error is None else error

    def _worst(self, rows: list[TrialRow]) -> float:
        """What counts for a trial without a result: an error of 100 %, or of another metric the worst so far."""
        known = [row.error for row in rows if row.error is not None]
        return 1.0 if self.store.metric.is_error else max(known, default=0.0)
