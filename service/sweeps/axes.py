"""From axes to configurations: which runs a sweep consists of. Combinations that come to the same run are one."""

import hashlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from service.errors import SpecInvalid
from service.spec import JobSpec, with_field
from service.sweeps.axis import Choice, Range, condition, is_met, listed
from service.sweeps.spec import GridSearch, RandomSearch, Sampled, SweepSpec, escaped
from trainers import FieldError, Resources, TrainSpec, field_errors, known_examples, needs

COMPUTED = ("rule", "batch", "multiple")
"""Axes that go by fields which other axes may set, in the order in which they are applied."""
SEED = "{seed}"
"""Stands for a trial's seed in `model.weights`."""
FOLDED = 16
"""How many times as many combinations as configurations are looked at before a grid is too large."""


@dataclass(frozen=True)
class Configuration:
    """One trial to run."""

    settings: dict[str, JsonValue]
    """Axis -> value, of the first combination that came to it."""
    job: JobSpec
    key: str
    """The same for every combination that comes to the same run."""


def configurations(spec: SweepSpec) -> list[Configuration]:
    """All that the sweep is to run, the baseline first; of a search that goes by results, what it begins with.

    Raises:
        SpecInvalid: An axis is empty or names no field, a value does not do, or the grid is over the limit.
    """
    found: dict[str, Configuration] = {}
    limit, count = spec.limits.trials, math.prod(len(listed(axis)) for axis in spec.axes.values())
    drawn = isinstance(spec.search, RandomSearch) or bool(spec.ranges)
    if not drawn and not isinstance(spec.search, Sampled) and count > limit * FOLDED:
        raise _over(count, limit)
    _check_axes(spec)
    if isinstance(spec.search, Sampled):
        return [configuration(spec, next(_combinations(spec)))]
    tries = islice(_combinations(spec), limit * FOLDED) if spec.ranges else _combinations(spec)
    for settings in tries:
        one = configuration(spec, settings)
        found.setdefault(one.key, one)
        if drawn and len(found) == limit:
            break
    if len(found) > limit:
        raise _over(len(found), limit)
    base = base_batch(spec)
    return sorted(found.values(), key=lambda one: one.job.update_batch != base)  # stable: otherwise as in the grid


def base_batch(spec: SweepSpec) -> int:
    """The baseline's batch."""
    batches = listed(spec.axes.get("batch", ()))
    smallest = min((int(b) for b in batches if isinstance(b, int)), default=spec.job.update_batch)
    return spec.report.base_batch or spec.job.batch.base or smallest


def _combinations(spec: SweepSpec) -> Iterator[dict[str, JsonValue]]:
    seed = getattr(spec.search, "seed", 0)
    if spec.ranges:
        dice = random.Random(seed)
        while True:
            yield _with_drawn(spec, dice)
    names = spec.in_order
    if not isinstance(spec.search, RandomSearch):
        yield from _every(spec, names, {})
        return
    sizes = [len(listed(spec.axes[name])) for name in names]
    for place in _drawn(math.prod(sizes), seed):
        settings, rest = dict[str, JsonValue](), place
        for name, size in zip(names, sizes, strict=True):
            rest, index = divmod(rest, size)
            if is_met(spec.axes[name], settings):
                settings[name] = listed(spec.axes[name])[index]
        yield settings


def _every(spec: SweepSpec, names: list[str], settings: dict[str, JsonValue]) -> Iterator[dict[str, JsonValue]]:
    """Every combination of the axes' values that goes on from these settings."""
    if not names:
        yield settings
        return
    axis = spec.axes[names[0]]
    if not is_met(axis, settings):
        yield from _every(spec, names[1:], settings)
        return
    for value in listed(axis):
        yield from _every(spec, names[1:], {**settings, names[0]: value})


def _with_drawn(spec: SweepSpec, dice: random.Random) -> dict[str, JsonValue]:
    """A combination of which each value is drawn."""
    settings: dict[str, JsonValue] = {}
    for name in spec.in_order:
        axis = spec.axes[name]
        if is_met(axis, settings):
            settings[name] = axis.draw(dice) if isinstance(axis, Range) else dice.choice(listed(axis))
    return settings


def _drawn(count: int, seed: int) -> Iterator[int]:
    """The numbers below `count` in a random order, without holding them all."""
    draw, seen = random.Random(seed), set[int]()
    while len(seen) < count:
        place = draw.randrange(count)
        if place not in seen:
            seen.add(place)
            yield place


def _check_axes(spec: SweepSpec) -> None:
    """Each axis by itself, so that each error has the path of its axis. Raises SpecInvalid."""
    errors = [*_wrong_ranges(spec), *_wrong_conditions(spec)]
    for name in () if errors else spec.axes:  # a value is tried beside what its axis' condition names
        errors += _wrong_values(spec, name)
    for name, fields in spec.variants.items():
        errors += _wrong_fields(spec, name, fields)
    if "rule" in spec.axes and spec.job.batch.base is None:
        errors.append(FieldError(pointer="/job/batch/base", message="rules scale from a base batch; set it"))
    if errors:
        raise SpecInvalid(errors)


def _wrong_ranges(spec: SweepSpec) -> Iterator[FieldError]:
    """Where a range cannot be answered for."""
    scaled = [name for name in ("batch", "rule") if name in spec.axes]
    for name in spec.ranges:
        pointer = f"/axes/{escaped(name)}"
        if isinstance(spec.search, GridSearch):
            yield FieldError(
                pointer=pointer, message="a grid has no ranges: list values, or search by random, asha, ..."
            )
        elif name in ("batch", "rule", "seed", "variant", "warmup"):
            yield FieldError(pointer=pointer, message=f"{name} has no range: list its values")
        elif scaled:
            message = "the scaling report compares seeds at equal settings, of which a range has none: list values"
            yield FieldError(pointer=pointer, message=f"{message}, or leave {' and '.join(scaled)} out")


def _wrong_conditions(spec: SweepSpec) -> Iterator[FieldError]:
    """Conditions that no trial meets, or that are not known when they are asked."""
    for name, axis in spec.axes.items():
        before = spec.in_order[: spec.in_order.index(name)]
        for other, values in condition(axis).items():
            pointer = f"/axes/{escaped(name)}/when/{escaped(other)}"
            if other not in before:
                yield FieldError(pointer=pointer, message="a condition names an axis that stands before its own")
            elif isinstance(spec.axes[other], Range):
                yield FieldError(pointer=pointer, message="a condition names an axis that lists its values")
            elif missing := [value for value in values if value not in listed(spec.axes[other])]:
                yield FieldError(pointer=pointer, message=f"{other} never has the value {missing[0]!r}")


def _wrong_values(spec: SweepSpec, name: str) -> list[FieldError]:
    """Values of one axis that its field does not take; of a range, its ends are tried."""
    axis, pointer = spec.axes[name], f"/axes/{escaped(name)}"
    if name == "variant" and spec.variants:
        return [
            _no_variant(spec, pointer, index, one) for index, one in enumerate(listed(axis)) if one not in spec.variants
        ]
    if isinstance(axis, Range):
        places: dict[str, JsonValue] = {"low": axis.rounded(axis.low), "high": axis.rounded(axis.high)}
    else:
        pointer += "/values" if isinstance(axis, Choice) else ""
        places = {str(index): value for index, value in enumerate(listed(axis))}
        if not places:
            return [FieldError(pointer=pointer, message="the axis is empty; give it at least one value")]
    beside = job_with(spec.job, spec.fields(_met(spec, name)), lenient=True)
    errors = []
    for place, value in places.items():
        try:
            job_with(beside, {name: value}, lenient=name != "batch")
        except SpecInvalid as error:
            message = "; ".join(dict.fromkeys(item.message for item in error.errors))
            if "there is no such field" in message:
                return [FieldError(pointer=pointer, message=message)]
            errors.append(FieldError(pointer=f"{pointer}/{place}", message=message))
    return errors


def _met(spec: SweepSpec, name: str) -> dict[str, JsonValue]:
    """Settings beside which a trial has an axis, the first of them."""
    found: dict[str, JsonValue] = {}
    for other, values in condition(spec.axes[name]).items():
        found |= _met(spec, other) | {other: values[0]}
    return found


def _wrong_fields(spec: SweepSpec, name: str, fields: Mapping[str, JsonValue]) -> Iterator[FieldError]:
    """Each field of a variant by itself."""
    for path, value in fields.items():
        try:
            job_with(spec.job, {path: value}, lenient=path != "batch")
        except SpecInvalid as error:
            message = "; ".join(dict.fromkeys(item.message for item in error.errors))
            yield FieldError(pointer=f"/variants/{escaped(name)}/{escaped(path)}", message=message)


def _no_variant(spec: SweepSpec, pointer: str, index: int, value: JsonValue) -> FieldError:
    there = ", ".join(spec.variants)
    return FieldError(pointer=f"{pointer}/{index}", message=f"there is no variant {value!r}, only {there}")


def _over(count: int, limit: int) -> SpecInvalid:
    message = f"the grid has {count} configurations, limits.trials allows {limit}; take values away, or raise the limit"
    return SpecInvalid([FieldError(pointer="/axes", message=message)])


def configuration(spec: SweepSpec, settings: dict[str, JsonValue]) -> Configuration:
    """What one combination comes to. Raises SpecInvalid."""
    try:
        fields = spec.fields(settings)
        job = with_own_weights(folded(job_with(spec.job, fields)))
    except SpecInvalid as error:
        combination = ", ".join(f"{axis} {value}" for axis, value in settings.items())
        raise SpecInvalid(
            [FieldError(pointer="/axes", message=f"{combination}: {item.in_words}") for item in error.errors]
        ) from None
    if "batch" in fields:
        _check_batch(job)
    return Configuration(settings, job, hashlib.sha256(job.train.model_dump_json().encode()).hexdigest()[:32])


def _check_batch(job: JobSpec) -> None:
    """Refuse a batch beyond the training set, as far as its size is known: an update would have only the whole set, at
    the learning rate of more. Raises SpecInvalid."""
    sizes = [size for size in (job.data.limit, known_examples(job.data)) if size is not None]
    if sizes and job.update_batch > min(sizes):
        problem = f"an update would have {job.update_batch} examples, and the training set has {min(sizes)}"
        raise _wrong("/axes/batch", f"{problem}; take such batches away, or raise data.limit where that is less")


def folded(job: JobSpec) -> JobSpec:
    """The same run without what does nothing in it: a rule at the base batch, a warm-up to a rate that is no higher."""
    update: dict[str, Any] = {}
    if job.batch_scaling.batch_factor == 1 and job.scaling.name != "none":
        update["scaling"] = type(job.scaling)()
    if not job.model_copy(update=update).warms_up:
        update["warmup"] = type(job.warmup)()
    return job.model_copy(update=update)


def with_own_weights(job: JobSpec) -> JobSpec:
    """The same run with its own seed for `{seed}` in `model.weights`: initial weights that go with it."""
    weights = job.model.weights
    if weights is None or SEED not in weights:
        return job
    model = job.model.model_copy(update={"weights": weights.replace(SEED, str(job.seed))})
    return job.model_copy(update={"model": model})


def job_with(job: JobSpec, settings: dict[str, JsonValue], lenient: bool = False) -> JobSpec:
    """The job with an axis' value, or several, in their places.

    lenient: what the value makes of other fields is not looked at, since other axes may mend it.

    Raises:
        SpecInvalid: With pointers into the job.
    """
    data = _without_defaults(job, settings)
    try:
        for axis in sorted(settings, key=_turn):
            data = _set(job, data, axis, settings[axis])
        return JobSpec.model_validate(data)
    except ValidationError as error:
        found = field_errors(error, JobSpec)
        if lenient and settings:
            own = "/" + "/".join(_path(next(iter(settings))))
            found = [item for item in found if item.pointer.startswith(own) or own.startswith(item.pointer)]
        if not found:
            return job
        raise SpecInvalid(found) from None


def _without_defaults(job: JobSpec, axes: Iterable[str]) -> dict[str, Any]:
    """The job as plain data, in which sections that an axis names lack what equals the defaults of their kind: another
    kind has defaults of its own. Which fields were written is not known, since a stored spec has all of them."""
    data = job.model_dump(mode="json")
    for *path, last in (axis.split(".") for axis in axes):
        section: Any = job
        for key in path:
            section = vars(section).get(key) if isinstance(section, BaseModel) else None
        if path and last == "name" and isinstance(section, BaseModel):
            data = with_field(data, path, section.model_dump(mode="json", exclude_defaults=True))
    return data


def _turn(axis: str) -> tuple[int, int]:
    """When an axis is applied: a section before its fields, which it would replace, and last what is computed from
    fields."""
    return (COMPUTED.index(axis) + 1 if axis in COMPUTED else 0, axis.count("."))


def _path(axis: str) -> list[str]:
    return {"rule": ["scaling"], "multiple": ["optimizer", "lr"]}.get(axis, axis.split("."))


def _set(job: JobSpec, data: dict[str, Any], axis: str, value: JsonValue) -> dict[str, Any]:
    match axis:
        case "batch":
            return _with_batch(job, data, value)
        case "multiple":
            if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
                raise _wrong("/optimizer/lr", f"a multiple of the learning rate is a number above 0, not {value!r}")
            return with_field(data, ["optimizer", "lr"], JobSpec.model_validate(data).optimizer.lr * value)
        case "rule" if isinstance(value, str):
            data = with_field(data, ["scaling", "name"], value)
            return data if value == "sqrt" else with_field(data, ["scaling", "weight_decay"], "keep")
        case "warmup" if isinstance(value, str):
            return with_field(data, ["warmup", "name"], value)
        case "project":
            raise _wrong("/project", "all trials of a sweep are of one project; set it in `job`")
        case _:
            return with_field(data, _path(axis), value)


def _with_batch(job: JobSpec, data: dict[str, Any], value: JsonValue) -> dict[str, Any]:
    """A batch of a synchronous run is V minibatches of n: n stays, and V = batch / n virtual workers share the trial's
    workers, so that a batch may be larger than what they could compute at once."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong("/batch", f"a batch is a whole number of examples, not {value!r}")
    traits = job.algorithm.traits
    if not traits.is_synchronous or traits.steps_alone:  # the batch grows with each worker's minibatch
        group = traits.minibatches_per_update(job.workers.num_virtual) if traits.group != 1 else 1
        if value % group:
            raise _wrong("/batch", f"{value} does not divide into the minibatches of {group} workers: job.algorithm")
        return with_field(data, ["batch", "per_worker"], value // group)
    workers, n = job.workers.count, job.batch.per_worker
    if value % (workers * n):
        message = (
            f"{value} does not divide into {workers} workers x {n} examples: job.workers.count, job.batch.per_worker"
        )
        raise _wrong("/batch", message)
    return with_field(data, ["workers", "virtual"], value // n)


def _wrong(pointer: str, message: str) -> SpecInvalid:
    return SpecInvalid([FieldError(pointer=pointer, message=message)])


def trial_needs(spec: SweepSpec) -> Resources:
    """What the largest trials need, as many of them as may run at a time, for a cluster of the sweep's own."""
    needed = [needs(train) for train in train_specs(configurations(spec))]
    count = spec.limits.concurrent or 1
    return Resources(count * max(one.cpus for one in needed), count * max(one.gpus for one in needed))


def train_specs(found: list[Configuration]) -> list[TrainSpec]:
    """What the trials' runs need, each kind of need once."""
    kinds = {(c.job.workers.count, c.job.workers.cpus, c.job.workers.gpus, c.job.ps): c.job for c in found}
    return [job.train for job in kinds.values()]
