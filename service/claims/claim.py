"""A claim of a paper: what it says, the sweep that asks whether it holds here, and what is expected if it does."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from service.errors import SpecInvalid
from service.plain_yaml import load_yaml
from service.scaling.counted import Quantity
from service.spec import apply_overrides, checked, with_field
from service.sweeps.spec import SweepSpec, parse_sweep
from trainers import FieldError

SPECS = Path(__file__).with_name("specs")
MOST_MINUTES = 30
"""Of a whole run on two cores."""


class Part(BaseModel):
    """Root of all parts of a claim: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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


Expectation = Worse | NoWorse | More | NoMore


def _sentence(text: str) -> str:
    return " ".join(text.split())


Sentence = Annotated[str, AfterValidator(_sentence), Field(min_length=1)]


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
    sweep: SweepSpec
    quick: dict[str, JsonValue] = {}
    """Paths of the sweep's spec -> values, for a run of at most three minutes that needs no data of its own."""
    expect: tuple[Expectation, ...] = Field(min_length=1)
    """Of the variants, if the claim holds."""

    @field_validator("expect")
    @classmethod
    def _knows_the_variants(cls, expect: tuple[Expectation, ...], info: ValidationInfo) -> tuple[Expectation, ...]:
        variants = info.data["sweep"].variants if "sweep" in info.data else {}
        for one in expect:
            if unknown := [name for name in one.variants if name not in variants]:
                raise ValueError(f"there is no variant {unknown[0]!r}, only {', '.join(variants)}")
        return expect

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What is judged beside the metric, in the order of the expectations."""
        return tuple(dict.fromkeys(one.of for one in self.expect if isinstance(one, More | NoMore)))

    @property
    def judges_metric(self) -> bool:
        """Whether the metric is judged at all."""
        return any(isinstance(one, Worse | NoWorse) for one in self.expect)

    def asked(self, quick: bool = False, overrides: list[str] | None = None) -> SweepSpec:
        """The sweep to run. Raises SpecInvalid where the overrides, `a.b=c`, do not fit."""
        data: Any = self.sweep.model_dump(mode="json")
        for path, value in (self.quick if quick else {}).items():
            data = with_field(data, path.split("."), value)
        return parse_sweep(apply_overrides(data, overrides or []))


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
