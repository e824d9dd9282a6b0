"""What is shown of a sweep, and the evidence that its report is drawn from."""

from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from service.scaling.evidence import Evidence, Question, Trial
from service.sweeps.axes import base_batch
from service.sweeps.curve import read_curve
from service.sweeps.ledger import Ledger, TrialRow, TrialState
from service.sweeps.log import counts_of, progress_of
from service.sweeps.spec import SweepSpec
from trainers import JournalReader, State, scaled_rate


class TrialView(BaseModel):
    """A trial in a sweep; all of it is at its job's address."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

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
    """Median test error of its last 5 epochs."""
    starts: int
    """How often it was started: more than once where the sweep was interrupted."""


class SweepSummary(BaseModel):
    """A sweep in a list."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    name: str
    state: State
    reason: str
    message: str
    created: float
    """Seconds since 1970."""
    user: str
    """Whose it is."""
    trials: dict[str, int]
    """How many there are in each state, and in all."""
    progress: float
    """0 to 1: the mean over the trials."""
    eta_s: float | None
    """Seconds until the last trial ends at the mean pace so far; null while nothing is known."""


class SweepView(SweepSummary):
    """A sweep with its trials."""

    spec: SweepSpec
    """As submitted and extended, with every default filled in and every path absolute."""
    folder: str
    """Its ledger, its log, and the run directories of its trials."""
    results: list[TrialView]


def view(ledger: Ledger) -> SweepView:
    """All of a sweep."""
    rows = ledger.trials()
    results = [
        TrialView(**row.model_dump(include=set(TrialView.model_fields) - {"progress"}), progress=_share(row))
        for row in rows
    ]
    return SweepView(**_summary(ledger, rows), spec=ledger.spec, folder=str(ledger.folder), results=results)


def summary(ledger: Ledger) -> SweepSummary:
    """A line of a list."""
    return SweepSummary(**_summary(ledger, ledger.trials()))


def evidence(ledger: Ledger) -> Evidence:
    """What the trials showed so far."""
    spec = ledger.spec
    question = Question(
        base_batch=base_batch(spec),
        base_lr=spec.job.optimizer.lr,
        tolerance=spec.report.tolerance,
        target_error=spec.report.target_error,
    )
    return Evidence(
        name=spec.name, question=question, trials=tuple(_trial(ledger, spec, row) for row in ledger.trials())
    )


def _summary(ledger: Ledger, rows: list[TrialRow]) -> dict[str, Any]:
    state = ledger.state
    eta_s = None
    if not state.is_terminal and state is not State.PAUSED:
        for event in JournalReader(ledger.folder).read():
            if event.type == "progress":
                eta_s = event.data["eta_s"]
    values = {name: ledger.get(name) for name in ("id", "reason", "message", "created")}
    return values | {
        "name": ledger.spec.name, "user": ledger.user, "state": state, "trials": counts_of(rows),
        "progress": progress_of(rows), "eta_s": eta_s,
    }  # fmt: skip


def _share(row: TrialRow) -> float:
    return 1.0 if row.state is TrialState.SUCCEEDED else row.share


def _trial(ledger: Ledger, spec: SweepSpec, row: TrialRow) -> Trial:
    job = row.job_spec
    curve = read_curve(ledger.run_dir(row.id))
    usual = job.warmup.name == "none" or job.warmup.epochs == spec.job.warmup.epochs  # then its name says it all
    warmup = job.warmup.name if usual else f"{job.warmup.name} {job.warmup.epochs:g}"
    multiple = row.settings.get("multiple", 1.0)
    return Trial(
        id=row.id,
        batch=job.update_batch,
        rule=job.scaling.name,
        warmup=warmup,
        lr=scaled_rate(job),
        multiple=float(multiple) if isinstance(multiple, int | float) else 1.0,
        seed=job.seed,
        state=row.state.value,
        reason=row.reason,
        error=curve.error,
        points=curve.points,
        settings=row.settings,
    )
