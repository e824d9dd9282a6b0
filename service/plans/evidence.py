"""Time to a target: the epochs that runs of the same job have needed, and what a plan makes of them."""

import contextlib
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from service.database.job_query import Query
from service.errors import SpecInvalid
from service.jobs.manager import JobManager
from service.jobs.metric_series import LOG, SeriesCache
from service.plans.target import Target
from service.spec import JobSpec
from trainers import EventLogReader, FieldError, Plan, Result, SpecRejected, TargetTime, counted_fields

NEWEST = 50
"""Jobs that are looked at."""
DEPTHS = ("*", "*/*/*", "*/*/*/*")
"""In a folder of runs, where those of jobs, sweeps and studies lie."""
ABOUT = "position.json"
"""In a checkpoint, what it is of."""
POINTS = 10_000
MOST_TRIALS = 8


class Evidence(NamedTuple):
    """An ended run, and a metric over it."""

    job_id: str
    spec: JobSpec
    points: Sequence[tuple[float, float]]
    """Epoch and value of each evaluation."""
    epochs: float
    examples: int
    noise_scale: float | None = None
    """Of its gradients, in examples, where it measured that."""

    @property
    def per_epoch(self) -> float:
        """Examples."""
        return self.examples / self.epochs

    def reaches(self, target: Target) -> float | None:
        """The epoch of the first evaluation that was as good; None if none was."""
        found = (epoch for epoch, value in self.points if target.is_reached(value))
        return next(found, None) if self.epochs else None


async def runs_of(manager: JobManager, spec: JobSpec, metric: str) -> list[Evidence]:
    """What the service's jobs tell of a metric of this one; also those with other batches."""
    page = await manager.page(Query(limit=NEWEST))
    jobs = [await manager.show(job.id) for job in page.jobs if job.state.is_terminal]
    found = list[Evidence]()
    for job in jobs:
        if _kind(job.spec, of_any_batch=True) == _kind(spec, of_any_batch=True):
            line, result = await manager.line(job.id, metric, "epoch", POINTS), job.result
            found.append(Evidence(job.id, job.spec, line.points, result.epochs, result.examples, result.noise_scale))
    return found


def runs_in(folder: Path, spec: JobSpec, metric: str) -> list[Evidence]:
    """What the runs in a folder of this machine tell, also those with other batches, of sweeps and of studies: the
    newest ones that have succeeded, and kept a checkpoint, in which the spec stands."""
    logs = (log for depth in DEPTHS for log in folder.glob(f"{depth}/{LOG}"))
    series, found = SeriesCache(), list[Evidence]()
    for log in sorted(logs, key=lambda log: -log.stat().st_mtime)[:NEWEST]:
        run = log.parent
        theirs = _spec_in(run)
        if theirs is None or _kind(theirs, of_any_batch=True) != _kind(spec, of_any_batch=True):
            continue
        if (result := _result_in(run)) is not None:
            points = series.line(run, metric, "epoch", POINTS).points
            found.append(Evidence(run.name, theirs, points, result.epochs, result.examples, result.noise_scale))
    return found


def with_target(
    spec: JobSpec,
    plan: Plan,
    target: Target,
    price: float | None,
    runs: Sequence[Evidence],
    by_noise: bool = False,
) -> Plan:
    """The plan with the time to the target at each number of workers for which a run tells the epochs.

    The epochs depend on what a step trains: of a synchronous job that is the same on any number of workers, of another
    one its runs on as many workers count. Runs differ from the job in nothing else than seed, name and how long they
    train.

    by_noise: Whether, where no such run tells it of a synchronous job, runs with other batches do, by the gradient
        noise scale that they have measured.

    Raises:
        SpecInvalid: There are such runs, and none has reached it.
    """
    reached, best = dict[int, list[tuple[str, float, float]]](), list[float]()
    same = [run for run in runs if _kind(run.spec) == _kind(spec)]
    for run in same:
        best += [value for _, value in run.points]
        if (epochs := run.reaches(target)) is not None:
            reached.setdefault(_size(run.spec), []).append((run.job_id, epochs, run.per_epoch * epochs))
    if by_noise and _is_fixed(spec) and not reached.get(_size(spec)):
        scales = {run.job_id: run.noise_scale for run in runs if run.noise_scale and run.reaches(target) is not None}
        others = {_size(spec): [_at_batch_of(spec, target, run) for run in runs if run.job_id in scales]}
        if scales:
            told = _told(spec, plan, target, others, price)
            scale = statistics.median(scales.values())
            return plan.model_copy(update={"target": told.model_copy(update={"noise_scale": scale})})
    if best and not reached:
        closest = min(best) if target.is_lower else max(best)
        who = "the only run of this job has not" if len(same) == 1 else f"none of {len(same)} runs of this job has"
        message = f"{who} reached it; the closest had {closest:g}"
        raise SpecInvalid([FieldError(pointer="/target", message=f"{target.metric} {target.value:g}: {message}")])
    return plan.model_copy(update={"target": _told(spec, plan, target, reached, price)})


def _at_batch_of(spec: JobSpec, target: Target, run: Evidence) -> tuple[str, float, float]:
    """A run with another batch, and the epochs and examples that the job would need: E = E_min (1 + B / B_noise) at a
    batch of B (McCandlish et al. 2018, section 2), with the learning rate that suits each."""
    reached = run.reaches(target)
    assert reached is not None, "only such runs are asked"
    assert run.noise_scale, "only such runs are asked"
    epochs = reached * (1 + spec.update_batch / run.noise_scale) / (1 + run.spec.update_batch / run.noise_scale)
    return run.job_id, epochs, run.per_epoch * epochs


def _told(
    spec: JobSpec,
    plan: Plan,
    target: Target,
    reached: dict[int, list[tuple[str, float, float]]],
    price: float | None,
) -> TargetTime:
    seconds, missing = dict[int, float](), list[int]()
    for each in plan.candidates:
        found = reached.get(_size(spec, each.workers))
        if found:
            seconds[each.workers] = statistics.median(examples for _, _, examples in found) / each.examples_per_s
        else:
            missing.append(each.workers)
    used = [run for runs in reached.values() for run in runs]
    return TargetTime(
        metric=target.metric,
        value=target.value,
        jobs=tuple(job for job, _, _ in used),
        epochs=statistics.median(epochs for _, epochs, _ in used) if used else None,
        seconds=seconds,
        prices={} if price is None else {count: s / 3600 * count * price for count, s in seconds.items()},
        trials=_trials(spec, missing),
    )


def _trials(spec: JobSpec, missing: list[int]) -> tuple[dict[str, Any], ...]:
    """Jobs that would tell what is missing: each can be posted to /v1/jobs."""
    if not missing:
        return ()
    if _is_fixed(spec):
        return (spec.model_dump(mode="json", exclude_defaults=True),)
    found = list[dict[str, Any]]()
    for count in missing[:MOST_TRIALS]:
        with contextlib.suppress(SpecRejected):  # it cannot have so many
            found.append(spec.with_workers(count).model_dump(mode="json", exclude_defaults=True))
    return tuple(found)


def _is_fixed(spec: JobSpec) -> bool:
    """Whether what a step trains does not depend on the number of workers."""
    return spec.algorithm.traits.is_synchronous and not spec.scales_batch


def _size(spec: JobSpec, workers: int | None = None) -> int:
    return spec.workers.num_virtual if _is_fixed(spec) else workers or spec.workers.count


def _kind(spec: JobSpec, of_any_batch: bool = False) -> dict[str, object]:
    """What runs must have in common. of_any_batch: But for the batch, and the rates that go with it."""
    names = ("algorithm", "batch", "scaling", "schedule", "warmup")
    shaped = {name: getattr(spec, name).model_dump(mode="json") for name in names}
    data = spec.data.model_dump(mode="json", exclude={"root", "download"})  # where it lies changes nothing
    fields = {**counted_fields(spec.train), **shaped, "data": data, "elastic": spec.elastic.mode}
    shaped["algorithm"].pop("noise_scale", None)  # to measure it changes nothing
    left_out = {"seed"}
    if of_any_batch:
        left_out |= {"batch", "scaling", "warmup"}
        fields["optimizer"] = spec.optimizer.model_dump(mode="json", exclude={"lr", "weight_decay"})
    return {name: value for name, value in fields.items() if name not in left_out}


def _spec_in(run: Path) -> JobSpec | None:
    """As the newest checkpoint has it."""
    for about in sorted((run / "checkpoints").glob(f"[!.]*/{ABOUT}"), reverse=True):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, SpecRejected):
            return JobSpec.model_validate(json.loads(about.read_bytes())["spec"])
    return None


def _result_in(run: Path) -> Result | None:
    found = [event.data for event in EventLogReader(run).read() if event.type == "result"]
    return Result.model_validate(found[-1]) if found else None
