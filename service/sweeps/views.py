"""How a sweep is shown, and the evidence for its report."""

from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict, JsonValue

from service.errors import SpecUnreadable
from service.scaling.evidence import Evidence, Question, Trial
from service.scaling.metric import Metric
from service.sweeps.axes import base_batch
from service.sweeps.log import counts_of, progress_of
from service.sweeps.spec import SweepSpec
from service.sweeps.trial_curve import read_curve
from service.sweeps.trial_store import TrialRow, TrialState, TrialStore
from trainers import Documented, EventLogReader, State


class TrialView(Documented):
    """A trial in a sweep. Its job has everything about it."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The job's id."""
    number: int
    state: TrialState
    reason: str
    message: str
    settings: dict[str, JsonValue]
    """Axis -> value."""
    progress: float
    """0 to 1."""
    error: float | None
    """Median test error of its last 5 epochs; null where another metric is compared."""
    value: float | None
    """Median over the last 5 epochs of what is compared: the test error, or the metric as the task measures it."""
    starts: int
    """How often it was started: more than once if the sweep was interrupted."""


class SweepSummary(Documented):
    """A sweep in a list."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    state: State
    reason: str
    message: str
    created: float
    """Seconds since 1970."""
    user: str
    """Who submitted it."""
    project: str = "default"
    """Of its job, and so of all trials."""
    labels: dict[str, str]
    """Of its job."""
    priority: int
    """Of its trials in the queue."""
    archived: bool
    """Whether lists leave it out unless they are asked for it."""
    trials: dict[str, int]
    """The number of trials in each state, and in all."""
    progress: float
    """0 to 1: the mean over the trials."""
    eta_s: float | None
    """Seconds until the last trial ends at the mean pace so far; null while that is not known."""


class SweepView(SweepSummary):
    """A sweep with its trials."""

    spec: SweepSpec
    """As submitted and extended, with every default filled in and every path absolute."""
    notes: str
    """What somebody wants to say of it."""
    folder: str
    """The folder with its trial store, its log, and the run directories of its trials."""
    metric: Metric
    """What its trials are compared by."""
    results: list[TrialView]


def view(store: TrialStore) -> SweepView:
    """A sweep in full."""
    rows, metric = store.trials(), store.metric
    results = [_trial_view(row, metric) for row in rows]
    notes = store.get("notes", "")
    whole = {"spec": store.spec, "notes": notes, "folder": str(store.folder), "metric": metric, "results": results}
    return SweepView(**_summary(store, rows), **whole)


def summary(store: TrialStore) -> SweepSummary:
    """A sweep in a list."""
    return SweepSummary(**_summary(store, store.trials()))


def evidence(store: TrialStore, told: Callable[[str], None] = lambda _: None) -> Evidence:
    """What the trials have shown so far.

    told: Called with the id of each trial that has been read; of thousands it takes minutes.
    """
    spec, metric = store.spec, store.metric
    target = spec.report.target_error if metric.is_error else spec.report.target
    question = Question(
        base_batch=base_batch(spec),
        base_lr=spec.job.optimizer.lr,
        metric=metric,
        tolerance=spec.report.tolerance,
        target_error=target if target is None or not metric.higher_is_better else -target,
    )
    trials = []
    for row in store.trials():
        trials.append(_trial(store, spec, row))
        told(row.id)
    return Evidence(name=spec.name, question=question, trials=tuple(trials))


def _summary(store: TrialStore, rows: list[TrialRow]) -> dict[str, Any]:
    state = store.state
    eta_s = None
    if not state.is_terminal and state is not State.PAUSED:
        for event in EventLogReader(store.folder).read():
            if event.type == "progress":
                eta_s = event.data["eta_s"]
    values = {name: store.get(name) for name in ("id", "reason", "message", "created")}
    spec, most = store.get("spec"), None if state.is_terminal else _most_trials(store)
    values["project"] = spec["job"].get("project", "default")
    values |= {"labels": spec["job"]["labels"], "priority": spec["job"]["priority"]}
    return values | {
        "name": spec["name"], "user": store.user, "archived": store.get("archived", False), "state": state,
        "trials": counts_of(rows), "progress": progress_of(rows, most), "eta_s": eta_s,
    }  # fmt: skip


def _most_trials(store: TrialStore) -> int | None:
    try:
        return store.spec.most_trials
    except SpecUnreadable:  # another version of Millrace looks after it
        return None


def _trial_view(row: TrialRow, metric: Metric) -> TrialView:
    fields = row.model_dump(include=set(TrialView.model_fields) - {"progress", "error", "value"})
    error = row.error if metric.is_error else None
    value = None if row.error is None else metric.value(row.error)
    return TrialView(**fields, progress=_fraction(row), error=error, value=value)


def _fraction(row: TrialRow) -> float:
    return 1.0 if row.state is TrialState.SUCCEEDED else row.fraction


def _trial(store: TrialStore, spec: SweepSpec, row: TrialRow) -> Trial:
    job = row.job_spec
    curve = read_curve(store.run_dir(row.id), spec.report)
    usual = job.warmup.name == "none" or job.warmup.epochs == spec.job.warmup.epochs  # then its name says it all
    warmup = job.warmup.name if usual else f"{job.warmup.name} {job.warmup.epochs:g}"
    multiple = row.settings.get("multiple", 1.0)
    return Trial(
        id=row.id,
        batch=job.update_batch,
        rule=job.scaling.name,
        warmup=warmup,
        lr=job.batch_scaling.learning_rate,
        multiple=float(multiple) if isinstance(multiple, int | float) else 1.0,
        seed=job.seed,
        state=row.state.value,
        reason=": ".join(filter(None, (row.reason, row.message.partition("\n")[0]))),
        error=row.error
        if curve.error is None and not curve.points
        else curve.error,  # without its log, if that is gone
        points=curve.points,
        start_loss=curve.start_loss,
        settings=row.settings,
        quantities=curve.counted.quantities,
    )
