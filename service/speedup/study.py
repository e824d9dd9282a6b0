"""The study of a job: its sweep over numbers of workers, and what its trials and its plan came to, as plain values."""

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import ConfigDict

from service.errors import SpecInvalid, StudyNotFound
from service.scaling.metric import ERROR, Metric
from service.scaling.targets import first_below
from service.spec import JobSpec
from service.sweeps.spec import SweepSpec, parse_sweep
from service.sweeps.trial_store import TrialState, TrialStore
from service.sweeps.views import evidence
from trainers import Documented, EventLogReader, FieldError, Plan, PlanRequest, SpecRejected, kept_profile

AXIS = "workers.count"
LEAST_S = 5.0
"""Of a run, so that its rate is not that of its first moments."""


class Part(Documented):
    """Root of all parts of a study: frozen and documented."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StudyRow(Part):
    """One number of workers. What is not known is null: it was not run, has not ended, or is not predicted."""

    workers: int
    state: str = "NOT RUN"
    """Of the run."""
    batch: int
    """Examples an update."""
    examples_per_s: float | None = None
    """Measured, from the first report of the workers to the last."""
    speed_up: float | None = None
    """Of that, against the fewest workers that were measured."""
    efficiency: float | None = None
    """Speed-up, divided by how many times as many workers there are."""
    predicted_per_s: float | None = None
    predicted_speed_up: float | None = None
    """Likewise against the fewest workers."""
    off: float | None = None
    """The predicted rate to the measured one, less 1."""
    cost: float | None = None
    """The run's median test error over the evaluations of its last 5 epochs, or that of another metric, its sign turned
    where more is better."""
    train_s: float | None = None
    """From the first step to the last epoch's end, evaluations among it; not the start of the run."""
    target_s: float | None = None
    """Until an evaluation first met the target."""
    target_examples: int | None = None
    """Likewise."""
    improvement: float | None = None
    """Of the time to the target, against the fewest workers."""
    predicted_target_s: float | None = None
    """The examples that this run needed, at the predicted rate. Null without a run: how many are needed is not
    predicted."""


class Study(Part):
    """All of them."""

    name: str
    algorithm: str
    metric: Metric = ERROR
    target: float | None = None
    """Cost to reach; null: none was asked for."""
    rows: tuple[StudyRow, ...]
    notes: tuple[str, ...] = ()
    """What a reader must know of the figures."""


def study_sweep(job: JobSpec, counts: Sequence[int], until: str | None) -> SweepSpec:
    """The sweep that runs a job on so many workers each, one run after the other.

    until: `METRIC=VALUE`; none: no target.

    Raises:
        SpecInvalid: The target is none, or the job cannot have so many workers, with the field.
    """
    report = {} if until is None else _target(until)
    return parse_sweep(
        {
            "name": job.name,
            "job": job.model_dump(mode="json"),
            "axes": {AXIS: list(counts)},
            "limits": {"concurrent": 1},
            "report": report,
        }
    )


def _target(until: str) -> dict[str, object]:
    name, _, text = until.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not name or not math.isfinite(value):
        message = f"{until!r} is no target; write METRIC=VALUE, such as accuracy=0.95"
        raise SpecInvalid([FieldError(pointer="/until", message=message)])
    if name in ("accuracy", "error"):
        error = value if name == "error" else 1 - value
        if not 0 < error < 1:
            raise SpecInvalid([FieldError(pointer="/until", message=f"{name} lies between 0 and 1, and is not {text}")])
        return {"metric": "accuracy", "target_error": error}
    return {"metric": name, "target": value}


def study_of(job: JobSpec, counts: Sequence[int], store: TrialStore | None, plan: Plan | None, cores: int) -> Study:
    """What is known now.

    Args:
        job: That is studied.
        counts: Numbers of workers.
        store: Of the sweep; None where nothing is run.
        plan: What is predicted; None where the cost model does not cover the job.
        cores: Of the machine, for a note where workers share them.
    """
    known = {} if store is None else _measured(store)
    question = None if store is None else evidence(store).question
    rows = [StudyRow(workers=count, batch=_batch(job, count), **known.get(count, {})) for count in counts]
    rows = [_predicted(row, plan) for row in rows]
    metric = ERROR if question is None else question.metric
    return Study(
        name=job.name,
        algorithm=job.algorithm.name,
        metric=metric,
        target=None if question is None else question.target_error,
        rows=tuple(_compared(row, rows) for row in rows),
        notes=tuple(_notes(job, rows, cores, metric)),
    )


def study_in(folder: Path, cores: int) -> Study:
    """What a sweep's folder tells now, of a sweep that varies the number of workers alone, beside what a profile of the
    job's step predicts where one is kept. Needs torch for that.

    cores: Of the machine, for a note where workers share them.

    Raises:
        StudyNotFound: It varies something else.
    """
    store = TrialStore(folder)
    spec = store.spec
    axis = spec.axes.get(AXIS)
    if list(spec.axes) != [AXIS] or not isinstance(axis, list | tuple):
        message = f"sweep {folder.name} varies {', '.join(spec.axes)}; only a list of {AXIS} alone makes a study"
        raise StudyNotFound(message)
    counts = sorted({int(str(count)) for count in axis})
    return study_of(spec.job, counts, store, _kept_plan(spec.job, counts), cores)


def _kept_plan(job: JobSpec, counts: Sequence[int]) -> Plan | None:
    """None where no profile is kept, or the cost model does not cover the job."""
    kept = kept_profile(job.train)
    if kept is None:
        return None
    from trainers import plan_work

    try:
        return plan_work(job.train, kept.work, PlanRequest(profile=kept, workers=tuple(counts)))
    except SpecRejected:
        return None


def _batch(job: JobSpec, count: int) -> int:
    return int(job.train.with_workers(count).update_batch) if job.workers.virtual else _of_as_many(job, count)


def _of_as_many(job: JobSpec, count: int) -> int:
    workers = job.train.workers.model_copy(update={"count": count})
    return int(job.train.model_copy(update={"workers": workers}).update_batch)


def _measured(store: TrialStore) -> dict[int, dict[str, object]]:
    """By number of workers, what its run came to."""
    found: dict[int, dict[str, object]] = {}
    shown = evidence(store)
    target, trials = shown.question.target_error, {trial.id: trial for trial in shown.trials}
    for row in store.trials():
        figures: dict[str, object] = {"state": row.state.value, "cost": row.error}
        if row.state is TrialState.SUCCEEDED:
            results = [event for event in EventLogReader(store.run_dir(row.id)).read() if event.type == "result"]
            figures["examples_per_s"] = results[-1].data["examples_per_s"] or None
            figures["train_s"] = max((point.seconds for point in trials[row.id].points), default=None)
        point = None if target is None else first_below(trials[row.id].points, target)
        if point is not None:
            figures |= {"target_s": point.seconds, "target_examples": point.examples}
        found[int(str(row.settings[AXIS]))] = figures
    return found


def _predicted(row: StudyRow, plan: Plan | None) -> StudyRow:
    candidate = next((one for one in plan.candidates if one.workers == row.workers), None) if plan else None
    if candidate is None:
        return row
    rate = candidate.examples_per_s
    return row.model_copy(
        update={
            "predicted_per_s": rate,
            "off": None if row.examples_per_s is None else rate / row.examples_per_s - 1,
            "predicted_target_s": None if row.target_examples is None else row.target_examples / rate,
        }
    )


def _compared(row: StudyRow, rows: Sequence[StudyRow]) -> StudyRow:
    """With the fewest workers of which the same is known."""
    update: dict[str, float] = {}
    if row.examples_per_s is not None:
        base = next(one for one in rows if one.examples_per_s is not None)
        assert base.examples_per_s is not None
        update["speed_up"] = row.examples_per_s / base.examples_per_s
        update["efficiency"] = update["speed_up"] * base.workers / row.workers
    if row.predicted_per_s is not None:
        base = next(one for one in rows if one.predicted_per_s is not None)
        assert base.predicted_per_s is not None
        update["predicted_speed_up"] = row.predicted_per_s / base.predicted_per_s
    if row.target_s:
        base = next(one for one in rows if one.target_s)
        assert base.target_s is not None
        update["improvement"] = base.target_s / row.target_s
    return row.model_copy(update=update)


def _notes(job: JobSpec, rows: Sequence[StudyRow], cores: int, metric: Metric) -> list[str]:
    found = []
    if any(row.cost is not None for row in rows):
        found.append(metric.explained)
    many = [row.workers for row in rows if row.workers * job.workers.threads > cores and not job.workers.gpus]
    if many:
        told = ", ".join(map(str, many))
        found.append(f"{told} workers share {cores} cores: their rates say what this machine has, not what more would")
    if len({row.batch for row in rows}) > 1:
        found.append("the batch grows with the workers, and the error with it; workers.virtual fixes it")
    if any(row.train_s is not None and row.train_s < LEAST_S for row in rows):
        found.append(f"runs that train for less than {LEAST_S:g} s say little about the rate; give the job more epochs")
    if job.algorithm.name == "hybrid":
        found.append(_hybrid(job, rows))
    return found


def _hybrid(job: JobSpec, rows: Sequence[StudyRow]) -> str:
    """Paper 1's two columns of batches, in a sentence."""
    minibatch = job.batch.per_worker
    fc = "the same" if getattr(job.algorithm, "fc_batch", "whole") == "whole" else f"{minibatch} in each turn"
    batches = ", ".join(dict.fromkeys(str(row.batch) for row in rows))
    return f"hybrid: the convolutions are updated by {batches} examples, the fully connected layers by {fc}"
