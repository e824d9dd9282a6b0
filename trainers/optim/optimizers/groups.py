"""Parameters with hyperparameters of their own. Imports no torch."""

from fnmatch import fnmatchcase
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from trainers.optim.schedules import AnySchedule
from trainers.section import Section, shorthand

Share = Annotated[float, Field(ge=0, lt=1)]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class GroupSpec(Section):
    """Some of the parameters, as `param_groups` of torch.optim: what is left out here is as in `optimizer`."""

    match: Pattern | tuple[Pattern, ...]
    """Which: patterns of names as in `state_dict`, with `*`, `?` and `[...]`. A parameter belongs to the first group
    that matches it."""
    lr: float | None = Field(default=None, gt=0, le=1000)
    """Its learning rate, which scaling, warm-up and schedule change by the same factors as the others'."""
    weight_decay: float | None = Field(default=None, ge=0, le=1)
    """Its weight decay; parameters in `no_decay` have none in any group."""
    momentum: Share | None = None
    """Of `momentum`, `nesterov` and `lars`."""
    decay: Share | None = None
    """Of `rmsprop`."""
    betas: tuple[Share, Share] | None = None
    """Of `adam`, `adamw`, `lion` and `lamb`."""
    epsilon: float | None = Field(default=None, gt=0, le=10)
    """Of those that have one."""
    schedule: Annotated[AnySchedule, shorthand("name", AnySchedule, str)] | None = None
    """Its own schedule in place of the run's; warm-up and scaling are the run's."""
    frozen: bool = False
    """Whether they stay as they are: no gradient, nothing sent, no update, no weight decay, no optimizer state."""

    @model_validator(mode="after")
    def _frozen_have_no_options(self) -> Self:
        given = self.options if self.schedule is None else self.options | {"schedule": self.schedule}
        if self.frozen and given:
            raise ValueError(f"frozen parameters are not updated; leave {min(given)} out, or frozen")
        if self.schedule is not None and self.schedule.warms_up:
            raise ValueError(f"the warm-up is the run's, and schedule {self.schedule.name} has its own; use another")
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        """At least one."""
        return (self.match,) if isinstance(self.match, str) else self.match

    @property
    def options(self) -> dict[str, Any]:
        """What it sets of the optimizer's fields."""
        return self.model_dump(exclude={"match", "schedule", "frozen"}, exclude_none=True)

    def matches(self, name: str) -> bool:
        """Whether it takes the parameter of this name, if none before it does."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)
