"""How a job is shown: in a list, and in full."""

from dataclasses import dataclass
from typing import Any

from service.database.job_store import Job
from service.job_summary import JobSummary
from service.jobs.lifecycle import AT_WORK
from service.jobs.progress import Progress
from service.jobs.queueing.queue_outlook import Outlook
from service.short_spec import short_spec
from service.spec import JobSpec
from trainers import Metrics, Result, State, Usage, metrics_of, set_of

HAVE_WORKERS = (*AT_WORK, State.PAUSING, State.CANCELLING)


class JobView(JobSummary):
    """A job with everything that is known of it now."""

    spec: JobSpec
    """As submitted, with every default filled in and every path absolute; name, labels and priority as they are now."""
    short_spec: dict[str, Any] = {}
    """Of it what differs from the defaults, as somebody would write it."""
    notes: str = ""
    """What its user says of it."""
    forked_from: str | None
    """`<job>/<step>`: the checkpoint of another job that this one began from."""
    retries: int
    """How often it was started again after it had failed."""
    metrics: Metrics | None
    """The last report over all workers."""
    evaluation: dict[str, Any] | None
    """The last evaluation."""
    usage: Usage | None = None
    """What each actor used of its machine, as it was told last; null where nothing is told yet."""
    workers: int
    """Workers that train now."""
    run_dir: str
    if_scaled: str = ""
    """What becomes of its result where it goes on with other workers, as a sentence."""
    storage: str = ""
    """The state of the copy of the run, as a sentence; empty if the service keeps no copies."""
    result: Result
    """How it ended, or how far it is, in the form in which `millrace run -o json` prints it."""


@dataclass(frozen=True)
class Page:
    """Some jobs, and the token of the next page."""

    jobs: list[JobSummary]
    next_page_token: str | None


def summary(job: Job, progress: Progress, outlook: Outlook | None) -> JobSummary:
    """A job in a list."""
    return JobSummary(**_summary(job, progress, outlook))


def view(job: Job, progress: Progress, outlook: Outlook | None, spec: JobSpec | None = None) -> JobView:
    """A job in full. spec: What it was submitted with, if that is still at hand."""
    result, dumped = progress.result_so_far(job.id, job.spec), None if spec is None else job.spec
    spec = spec or job.job_spec
    return JobView(
        **_summary(job, progress, outlook),
        spec=spec,
        short_spec=short_spec(spec, dumped),
        if_scaled=if_scaled(spec),
        forked_from=job.forked_from,
        notes=job.notes,
        retries=progress.retries,
        metrics=progress.metrics,
        evaluation=progress.evaluation,
        usage=progress.usage,
        workers=result.workers if job.state in HAVE_WORKERS else 0,
        run_dir=str(job.run_dir),
        result=result.model_copy(update={"state": job.state, "message": job.message}),
    )


def if_scaled(spec: JobSpec) -> str:
    """What becomes of the result of a job where it goes on with other workers, as a sentence."""
    traits = spec.algorithm.traits
    if spec.elastic.mode == "scale_batch":
        return "The batch changes with the workers, and the learning rate follows it: the result is another one."
    if traits.num_backup:
        return "Other workers may be the last ones of a step then: the result is another one."
    if not traits.is_synchronous:
        return "Updates come in another order then: the result is another one. No acknowledged update is lost."
    if getattr(spec.algorithm, "reduction", "canonical") != "canonical":
        return "Sums are added in another order then: the result stays the same up to rounding."
    return "The result stays the same; only how fast it comes changes."


def measured(evaluation: dict[str, Any]) -> dict[str, float]:
    """The metrics of an evaluation by their names in the log: those of the test set apart from the validation set's."""
    found = {f"{set_of(evaluation)}_{name}": value for name, value in metrics_of(evaluation).items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def _summary(job: Job, progress: Progress, outlook: Outlook | None) -> dict[str, Any]:
    epochs = job.spec["epochs"]
    why: dict[str, Any] = {"reason": job.reason, "message": job.message, "place": None, "starts_in_s": None}
    if outlook is not None and job.state is State.QUEUED:
        why = {"reason": outlook.reason, "message": outlook.message}
        why |= {"place": outlook.position, "starts_in_s": outlook.starts_in_s}
    headline, metrics, result = progress.headline, progress.metrics, progress.result
    rate = result.examples_per_s if result else metrics and metrics.examples_per_s
    training = len(progress.workers) or (metrics.workers if metrics else 0)
    kept = {"id", "name", "user", "project", "labels", "priority", "archived", "state", "created", "finished"}
    return {
        **job.model_dump(include=kept),
        **why,
        "algorithm": job.spec["algorithm"]["name"],
        "progress": progress.fraction(epochs),
        "eta_s": progress.eta_s(epochs) if job.state in AT_WORK else None,
        "headline": headline and headline[0],
        "headline_value": headline and headline[1],
        "measured": measured(progress.evaluation or {}),
        "curve": progress.curve.values,
        "loss": metrics and metrics.loss,
        "examples_per_s": rate,
        "num_workers": training or job.spec["workers"]["count"],
        "wall_s": progress.at_work_s,
    }
