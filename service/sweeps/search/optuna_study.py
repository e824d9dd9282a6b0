"""Optuna's samplers, by its ask-and-tell interface."""

from typing import Any

from pydantic import JsonValue

from service.sweeps.axis import Axis, Range, is_met, listed
from service.sweeps.spec import OptunaSearch, SweepSpec
from service.sweeps.trial_store import TrialRow


class OptunaStudy:
    """A study in memory, made of the trials so far. worst: the cost of a trial without a result."""

    def __init__(self, spec: SweepSpec, search: OptunaSearch, rows: list[TrialRow], worst: float) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.spec = spec
        sampler = _sampler(search, search.seed + len(rows))
        self.study = optuna.create_study(sampler=sampler, direction="minimize")
        self.asked: Any = None
        for row in rows:
            if (known := self._known(row, worst)) is not None:
                self.study.add_trial(known)

    def ask(self) -> dict[str, JsonValue]:
        """The settings that it would try next."""
        self.asked, settings = self.study.ask(), dict[str, JsonValue]()
        for name in self.spec.in_order:
            axis = self.spec.axes[name]
            if is_met(axis, settings):
                settings[name] = _suggested(self.asked, name, axis)
        return settings

    def tell(self, cost: float) -> None:
        """What those come to that it was asked for last."""
        self.study.tell(self.asked, cost)

    def _known(self, row: TrialRow, worst: float) -> Any:
        """A trial as Optuna has it; one that still runs too, so that it is not proposed again. None where the axes have
        other values by now."""
        import optuna

        params, space = dict[str, Any](), dict[str, Any]()
        for name, value in row.settings.items():
            axis = self.spec.axes.get(name, ())
            if isinstance(axis, Range):
                params[name] = value
            elif value in listed(axis):
                params[name] = listed(axis).index(value)
            else:
                return None
            space[name] = _distribution(axis)
        has_ended = row.state.has_ended
        return optuna.trial.create_trial(
            state=optuna.trial.TrialState.COMPLETE if has_ended else optuna.trial.TrialState.RUNNING,
            params=params,
            distributions=space,
            value=(worst if row.error is None else row.error) if has_ended else None,
        )


def _sampler(search: OptunaSearch, seed: int) -> Any:
    import optuna

    if search.sampler == "gp":
        return optuna.samplers.GPSampler(seed=seed)
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not isinstance(axis, Range):
        return CategoricalDistribution([*range(len(listed(axis)))])
    if axis.integer:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(axis.low, axis.high, log=axis.log, step=axis.step)


def _suggested(trial: Any, name: str, axis: Axis) -> JsonValue:
    """A value of an axis, chosen by the results so far."""
    if not isinstance(axis, Range):
        place: int = trial.suggest_categorical(name, [*range(len(listed(axis)))])
        return listed(axis)[place]
    if axis.integer:
        found = trial.suggest_int(name, int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    else:
        found = trial.suggest_float(name, axis.low, axis.high, log=axis.log, step=axis.step)
    return axis.rounded(found)
