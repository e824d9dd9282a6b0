"""A claim of a paper: what it says, the sweep that asks whether it holds here, and what is expected if it does."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from service.errors import SpecInvalid
from service.plain_yaml import load_yaml
from service.scaling.counted import FULLEST, Quantity
from service.spec import apply_overrides, checked, with_field
from service.sweeps.axis import listed
from service.sweeps.spec import SweepSpec, parse_sweep
from trainers import Documented, FieldError

SPECS = Path(__file__).with_name("specs")
MOST_MINUTES = 30
"""Of a whole run on two cores."""
BEFORE = "before"
"""The folder of the sweep that is run first; stands before what names its models, and before its fields in `quick` and
in overrides."""


class Part(Documented):
    """Root of all parts of a claim: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Worse(Part):
    """One variant's mean cost is above another's by more than `by`."""

    worse: str
    than: str
    by: float = Field(default=0.0, ge=0)
    """Absolute, in the metric's own unit; 0.01 is one percent of the test examples."""

    @property
    def variants(self) -> tuple[str, str]:
        """The one that is judged, and what it is compared with."""
        return self.worse, self.than


class NoWorse(Part):
    """One variant's mean cost is above another's by less than `within`."""

    no_worse: str
    than: str
    within: float = Field(gt=0)
    """As `by`."""

    @property
    def variants(self) -> tuple[str, str]:
        """The one that is judged, and what it is compared with."""
        return self.no_worse, self.than


class Near(Part):
    """One variant's mean cost differs from another's by less than `within`, whichever is above."""

    near: str
    to: str
    within: float = Field(gt=0)
    """As `by`."""

    @property
    def variants(self) -> tuple[str, str]:
        """The one that is judged, and what it is compared with."""
        return self.near, self.to


class More(Part):
    """One variant's mean of a quantity is more than `times` another's."""

    more: str
    than: str
    of: Quantity
    times: float = Field(default=1.0, gt=0)

    @property
    def variants(self) -> tuple[str, str]:
        """The one that is judged, and what it is compared with."""
        return self.more, self.than


class NoMore(Part):
    """One variant's mean of a quantity is less than `times` another's."""

    no_more: str
    than: str
    of: Quantity
    times: float = Field(gt=0)

    @property
    def variants(self) -> tuple[str, str]:
        """The one that is judged, and what it is compared with."""
        return self.no_more, self.than


Expectation = Worse | NoWorse | Near | More | NoMore


def _sentence(text: str) -> str:
    return " ".join(text.split())


Sentence = Annotated[str, AfterValidator(_sentence), Field(min_length=1)]


def variant_name(settings: Mapping[str, JsonValue]) -> str:
    """Of a trial, by its settings: of a sweep without variants, the values of its axes, as `64, linear`."""
    if "variant" in settings:
        return str(settings["variant"])
    return ", ".join(str(value) for axis, value in settings.items() if axis != "seed")


def variants_of(sweep: SweepSpec) -> list[str]:
    """The names of all that a sweep may compare."""
    if sweep.variants:
        return list(sweep.variants)
    axes = {axis: listed(values) for axis, values in sweep.axes.items() if axis != "seed"}
    return [variant_name(dict(zip(axes, values, strict=True))) for values in product(*axes.values())]


PLACED = {"round_robin": "in turn", "balanced": "cut evenly"}
"""`ps.placement` -> in words."""


class ShardsOf(Part):
    """How evenly models lie on their servers, which their layouts tell without a run, for each number of servers."""

    models: tuple[str, ...] = Field(min_length=1)
    """By name; on 224x224 colour images in 1000 classes."""
    most: int = Field(ge=2, multiple_of=2)
    """Servers; even, so that each even number has an odd one below it."""

    @property
    def variants(self) -> list[str]:
        """What can be compared: `resnet50 in turn, even numbers`, and so on."""
        kinds = product(self.models, PLACED.values(), ("odd", "even"))
        return [f"{model} {placed}, {numbers} numbers" for model, placed, numbers in kinds]


class Claim(Part):
    """One claim."""

    number: int = Field(ge=1)
    """In the order of the guide."""
    name: str = Field(pattern=r"^[a-z][a-z-]*$")
    claim: Sentence
    source: Sentence
    """Paper and section, table or figure."""
    differs: Sentence
    """What differs from the paper's own experiment, and what would be needed for that."""
    minutes: float = Field(gt=0, le=MOST_MINUTES)
    """That a whole run takes on two cores."""
    before: SweepSpec | None = None
    """Runs first. The jobs of `sweep` start from its finished models: `before/VARIANT-{seed}.safetensors` as their
    `model.weights` is that of a variant with the trial's own seed. It reads its data where `sweep` does."""
    sweep: SweepSpec
    quick: dict[str, JsonValue] = {}
    """Paths of the sweep's spec -> values, for a run of at most three minutes that needs no data of its own; those of
    `before` begin with that."""
    shards: ShardsOf | None = None
    """What is computed beside the sweep. Its variants take a pair, such as 3 and 4 servers, for a seed."""
    expect: tuple[Expectation, ...] = Field(min_length=1)
    """Of the variants, if the claim holds."""

    @field_validator("expect")
    @classmethod
    def _knows_the_variants(cls, expect: tuple[Expectation, ...], info: ValidationInfo) -> tuple[Expectation, ...]:
        variants = variants_of(info.data["sweep"]) if "sweep" in info.data else []
        if (shards := info.data.get("shards")) is not None:
            variants += shards.variants
        for one in expect:
            if unknown := [name for name in one.variants if name not in variants]:
                raise ValueError(f"there is no variant {unknown[0]!r}, only {', '.join(variants)}")
        return expect

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What is judged of the runs beside the metric, in the order of the expectations."""
        found = dict.fromkeys(one.of for one in self.expect if isinstance(one, More | NoMore))
        return tuple(of for of in found if of != FULLEST)

    @property
    def judges_metric(self) -> bool:
        """Whether the metric is judged at all."""
        return not self.expect or any(isinstance(one, Worse | NoWorse | Near) for one in self.expect)

    def asked(self, quick: bool = False, overrides: list[str] | None = None, folder: Path = Path()) -> SweepSpec:
        """The sweep to run in a folder. Raises SpecInvalid where the overrides, `a.b=c`, do not fit."""
        quickly = {path: value for path, value in self.quick.items() if not path.startswith(f"{BEFORE}.")}
        given = [one for one in overrides or [] if not one.startswith(f"{BEFORE}.")]
        data = _changed(self.sweep, quickly if quick else {}, given)
        return parse_sweep(_placed(data, folder))

    def asked_before(self, quick: bool = False, overrides: list[str] | None = None) -> SweepSpec | None:
        """What is to be run before that; None: nothing. Raises SpecInvalid likewise."""
        root, prefix = self.asked(quick, overrides).job.data.root, f"{BEFORE}."
        given = [one.removeprefix(prefix) for one in overrides or [] if one.startswith(prefix)]
        if self.before is None:
            if given:
                raise SpecInvalid([FieldError(pointer="/before", message=f"{self.name} runs nothing before its sweep")])
            return None
        quickly = {path.removeprefix(prefix): value for path, value in self.quick.items() if path.startswith(prefix)}
        data = _changed(self.before, quickly if quick else {}, given)
        return parse_sweep(with_field(data, ["job", "data", "root"], root))


def _changed(sweep: SweepSpec, fields: Mapping[str, JsonValue], overrides: list[str]) -> Any:
    """The sweep's spec as plain data, with other values."""
    data: Any = sweep.model_dump(mode="json")
    for path, value in fields.items():
        data = with_field(data, path.split("."), value)
    return apply_overrides(data, overrides)


def _placed(value: Any, folder: Path) -> Any:
    """Plain data in which whatever is named in the sweep before is named in its folder."""
    if isinstance(value, dict):
        return {name: _placed(part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_placed(part, folder) for part in value]
    return str(folder / value) if isinstance(value, str) and value.startswith(f"{BEFORE}/") else value


@cache
def all_claims() -> Mapping[str, Claim]:
    """All of them by name, in the order of the guide."""
    found = [checked(load_yaml(path.read_bytes()), Claim) for path in SPECS.glob("*.yaml")]
    return {claim.name: claim for claim in sorted(found, key=lambda claim: claim.number)}


def claim_of(name: str) -> Claim:
    """One of them, by its name or number. Raises SpecInvalid."""
    for claim in all_claims().values():
        if name in (claim.name, str(claim.number)):
            return claim
    there = ", ".join(all_claims())
    raise SpecInvalid([FieldError(pointer="", message=f"there is no claim {name!r}, only {there}")])
