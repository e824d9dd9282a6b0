"""SweepSpec: a JobSpec, the axes along which it is varied, how they are searched, and within which limits."""

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)

from service.errors import SpecInvalid
from service.plain_yaml import load_yaml
from service.scaling.divergence import Divergence
from service.spec import NAME, JobSpec, apply_overrides, checked
from service.sweeps.axis import TAGS, Axes, Axis, Choice, Part, Range, listed
from trainers import PATH_FIELDS, FieldError, absolute

TASKS = frozenset({"classification", "regression", "language_model", "segmentation"})
"""Those of which it is known from the spec what they are compared by."""
BATCH = frozenset({"batch", "rule", "scaling", "batch.per_worker", "workers", "workers.count", "workers.virtual"})
"""Axes of a sweep that is reported on by batches and rates."""


class GridSearch(Part):
    """Every combination of the axes, the smallest batches first."""

    name: Literal["grid"] = "grid"


class RandomSearch(Part):
    """As many combinations as `limits.trials` allows, drawn without repetition."""

    name: Literal["random"] = "random"
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the draw."""


class Halving(Part):
    """When trials are stopped early."""

    grace_epochs: int = Field(default=1, ge=1)
    """No trial is stopped before it has been trained so long."""
    reduction: float = Field(default=3, gt=1, le=100)
    """At each rung, one trial in so many goes on."""


class AshaSearch(Halving):
    """Every combination, or of ranges as many as `limits.trials` allows, and the worse ones are stopped early:
    asynchronous successive halving (Li et al. 2020)."""

    name: Literal["asha"] = "asha"
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the draw from ranges."""


class OptunaSearch(Part):
    """Combinations that Optuna's sampler chooses by what the trials before came to."""

    name: Literal["optuna"] = "optuna"
    sampler: Literal["tpe", "gp"] = "tpe"
    """`tpe`: tree-structured Parzen estimators (Bergstra et al. 2011), for any axes. `gp`: a Gaussian process, for few
    trials of few ranges."""
    halving: Halving | None = None
    """Stops the worse trials early too, as `asha` does."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the sampler."""


class BohbSearch(Halving):
    """BOHB (Falkner et al. 2018): a model of the good and the bad combinations chooses, halving stops the worse trials;
    needs the extra `bohb`."""

    name: Literal["bohb"] = "bohb"
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the draws."""

    @field_validator("name")
    @classmethod
    def _is_installed(cls, name: str) -> str:
        if find_spec("hpbandster") is None or find_spec("ConfigSpace") is None:
            raise ValueError("its packages are not installed here: pip install 'millrace[bohb]', or use optuna")
        return name


Sampled = OptunaSearch | BohbSearch
"""Searches that choose the next trial by what those before came to."""
AnySearch = Annotated[
    Annotated[GridSearch | RandomSearch | AshaSearch | Sampled, Field(discriminator="name")],
    BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value),
]


class LimitsSpec(Part):
    """What the sweep may take."""

    trials: int = Field(default=200, ge=1, le=10_000)
    """Trials in all."""
    time_s: float | None = Field(default=None, gt=0)
    """Seconds that the sweep may run, pauses not counted; then what runs is stopped and nothing more is started."""
    concurrent: int | None = Field(default=None, ge=1, le=10_000)
    """Trials at a time; none: as many as fit the cluster."""


class StopSpec(Part):
    """When a trial is stopped early."""

    diverges_from_baseline: bool | Divergence = False
    """When its training curve has separated from those at the base batch (paper 4, section 5.3); a section in place of
    `true` says what counts as separated."""


class ReportSpec(Part):
    """What the scaling report is asked."""

    metric: str = ""
    """The metric of the task that trials are compared by, such as `perplexity`; none: the task's headline. Of
    `accuracy` it is the error."""
    higher_is_better: bool | None = None
    """Of `metric`; none: as the task says of its headline, or else by the name: yes for `accuracy`, `r2`, `iou` ..."""
    tolerance: float = Field(default=0.005, gt=0, le=1e9)
    """Test error above the baseline's mean that is still as good, absolute; of another metric in its own unit."""
    base_batch: int | None = Field(default=None, ge=1)
    """The baseline's batch; none: `job.batch.base`, from which rules scale, or else the smallest batch of the axis."""
    target_error: float | None = Field(default=None, gt=0, lt=1)
    """Test error for the table of time to a target; none: the baseline's mean and the tolerance."""
    target: float | None = None
    """Likewise of another metric."""


class SweepSpec(Part):
    """Runs of one job that differ along axes."""

    name: str = Field(default="sweep", pattern=NAME)
    """Letters, digits, dots, dashes and underscores, at most 63."""

    job: JobSpec = JobSpec()
    """What every trial runs, but for what the axes change."""

    axes: Axes
    """Axis -> its values, or a range of numbers that they are drawn from. `batch`: examples an update; `multiple`: of
    `optimizer.lr`; `rule`: `scaling` by name; `warmup`: by name or as a section; any other is the path of a field of
    the job, such as `seed` or `optimizer.momentum`. `variant`: the names of `variants`; left out, all of them."""

    variants: dict[str, dict[str, JsonValue]] = Field(default={})
    """Name -> what that variant of the job has, as axes have it: `batch`, `rule`, or the path of a field -> value."""

    search: AnySearch = GridSearch()
    """`grid`, `random`, `asha`, `optuna` or `bohb`, by name alone or with options."""

    limits: LimitsSpec = LimitsSpec()
    """What it may take."""

    stop: StopSpec = StopSpec()
    """When a trial is stopped early."""

    report: ReportSpec = ReportSpec()
    """What the report is asked."""

    @model_validator(mode="before")
    @classmethod
    def _runs_all_variants(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(variants := data.get("variants"), dict) and variants:
            axes = data.get("axes", {})
            if isinstance(axes, dict) and "variant" not in axes:
                return data | {"axes": {"variant": list(variants), **axes}}
        return data

    @field_validator("axes")
    @classmethod
    def _no_axis_is_empty(cls, axes: Axes) -> Axes:
        if not axes:
            raise ValueError("a sweep has at least one axis, such as `seed: [0, 1, 2]`")
        return axes

    @field_validator("job")
    @classmethod
    def _reads_its_data_itself(cls, job: JobSpec) -> JobSpec:
        if job.data.kind == "ray":
            raise ValueError(
                "data: a sweep's trials hold the CPUs that a Ray Dataset is executed on; write it to files, and name "
                "them as parquet"
            )
        return job

    @field_validator("report")
    @classmethod
    def _baseline_is_where_the_rules_begin(cls, report: ReportSpec, info: ValidationInfo) -> ReportSpec:
        base = info.data["job"].batch.base if "job" in info.data else None
        if base is not None and report.base_batch not in (None, base):
            raise ValueError(f"base_batch: rules scale from job.batch.base, which is {base}; leave it out here")
        return report

    @field_validator("report")
    @classmethod
    def _asks_for_what_is_compared(cls, report: ReportSpec, info: ValidationInfo) -> ReportSpec:
        task = info.data["job"].task.name if "job" in info.data else ""
        is_error = report.metric == "accuracy" or (not report.metric and task == "classification")
        is_other = report.metric not in ("", "accuracy") or (not report.metric and task in TASKS - {"classification"})
        if is_error and report.tolerance > 1:
            raise ValueError("tolerance: of errors it is a share of the test examples; 0.005 is half a percent")
        if is_error and report.target is not None:
            raise ValueError("target: the test error is compared; use target_error, or name another report.metric")
        if is_other and report.target_error is not None:
            raise ValueError("target_error: no test error is compared; use target, or report.metric: accuracy")
        return report

    @property
    def varies_batch(self) -> bool:
        """Whether it asks how large the batch can be, and by which rule the rate must follow: of ranges there is no
        answer to that."""
        paths = {*self.axes, *(path for fields in self.variants.values() for path in fields)}
        return not self.ranges and any(path in BATCH or path.startswith("scaling.") for path in paths)

    @property
    def most_trials(self) -> int | None:
        """How many trials a search that goes by results may come to, which adds them one by one; None of others, whose
        trials are all known before."""
        if not isinstance(self.search, Sampled):
            return None
        combinations = math.prod(len(listed(axis)) for axis in self.axes.values())
        return self.limits.trials if self.ranges else min(self.limits.trials, combinations)

    @property
    def ranges(self) -> dict[str, Range]:
        """The axes that values are drawn from."""
        return {name: axis for name, axis in self.axes.items() if isinstance(axis, Range)}

    @property
    def in_order(self) -> list[str]:
        """The axes as a trial's settings are found, one after the other: the seed last, so that the seeds of one
        combination stay together."""
        return sorted(self.axes, key=lambda axis: axis == "seed")

    def resolved(self, base: Path) -> "SweepSpec":
        """The same spec with every relative path taken from the folder `base`, those on axes too."""
        axes = {axis: _axis_resolved(axis, values, base) for axis, values in self.axes.items()}
        variants = {
            name: {path: _resolved(path, value, base) for path, value in fields.items()}
            for name, fields in self.variants.items()
        }
        return self.model_copy(update={"job": self.job.resolved(base), "axes": axes, "variants": variants})

    def fields(self, settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """The settings of a trial with the fields of its variant in the variant's place."""
        chosen = self.variants.get(str(settings.get("variant")), {})
        return {**chosen, **{axis: value for axis, value in settings.items() if axis != "variant" or not self.variants}}

    def extended(self, axes: Mapping[str, Any], limits: Mapping[str, Any] | None = None) -> "SweepSpec":
        """The same sweep with more values on its axes, or more axes, and other limits.

        Raises:
            SpecInvalid: Something added is wrong.
        """
        dumped = self.model_dump(mode="json")
        for axis, values in axes.items():
            there = self.axes.get(axis, ())
            if not isinstance(values, list | tuple) or not isinstance(there, tuple):
                message = "only an axis that lists its values is extended; of ranges, raise limits.trials"
                raise SpecInvalid([FieldError(pointer=f"/axes/{escaped(axis)}", message=message)])
            dumped["axes"][axis] = [*there, *(value for value in values if value not in there)]
        return parse_sweep({**dumped, "limits": dumped["limits"] | dict(limits or {})})


def _axis_resolved(name: str, axis: Axis, base: Path) -> Axis:
    if isinstance(axis, Range):
        return axis
    values = tuple(_resolved(name, value, base) for value in listed(axis))
    return axis.model_copy(update={"values": values}) if isinstance(axis, Choice) else values


def _resolved(axis: str, value: JsonValue, base: Path) -> Any:
    """An axis' value with the paths in it absolute."""
    given: Any = value
    for path in PATH_FIELDS:
        own, rest = path[: axis.count(".") + 1], path[axis.count(".") + 1 :]
        if own != tuple(axis.split(".")):
            continue
        if not rest and isinstance(given, str):
            given = absolute(given, base)
        elif len(rest) == 1 and isinstance(given, dict) and isinstance(given.get(rest[0]), str):
            given = given | {rest[0]: absolute(given[rest[0]], base)}
    return given


def escaped(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


OF_JOBS = JobSpec.model_fields.keys() - SweepSpec.model_fields.keys()
"""Fields that no sweep has."""


def parse_sweep(data: Any) -> SweepSpec:
    """A sweep's spec from plain data. Raises SpecInvalid with a pointer for each field that is wrong."""
    if not isinstance(data, dict):
        raise SpecInvalid([FieldError(pointer="", message="a sweep's spec is a mapping of fields")])
    if not data.keys() & {"job", "axes", "variants"} and data.keys() & OF_JOBS:
        message = "this is the spec of a job: a sweep has it under `job`, and `axes` beside it; `millrace run` takes it"
        raise SpecInvalid([FieldError(pointer="", message=message)])
    try:
        return checked(data, SweepSpec)
    except SpecInvalid as error:
        raise SpecInvalid([one.model_copy(update={"pointer": _written(one.pointer)}) for one in error.errors]) from None


def _written(pointer: str) -> str:
    """A pointer without the form of an axis, which pydantic puts into it."""
    parts = pointer.split("/")
    return "/".join(parts[:3] + parts[4:]) if parts[1:2] == ["axes"] and parts[3:4] and parts[3] in TAGS else pointer


def read_sweep_file(path: Path, overrides: list[str] | None = None) -> SweepSpec:
    """A sweep's spec from a YAML or JSON file, with `a.b=c` overrides. Raises SpecInvalid."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SpecInvalid([FieldError(pointer="", message=f"cannot be read: {error.strerror}")]) from None
    return parse_sweep(apply_overrides(load_yaml(text), overrides or []))
