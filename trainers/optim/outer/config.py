"""The options of the outer rules. Imports no torch."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from trainers.section import Section

if TYPE_CHECKING:
    from trainers.optim.rule import UpdateRule

PUSHED = "d = what a push changed, start minus end"


class OuterSpec(Section):
    """Base class of the options of a rule: SGD, of some kind, to which what was pushed is the gradient."""

    source: ClassVar[str]
    """Paper and section."""

    lr: float = Field(default=0.7, gt=0, le=100)
    """Its learning rate, the same throughout the run."""

    pushes: Annotated[int, Field(ge=1, le=4096)] | Literal["workers"] = 1
    """Pushes whose mean makes an outer step (Nguyen et al. 2022, FedBuff); `workers`: as many as the workers with which
    the run begins, or of `mixed` the groups."""

    def num_pushes(self, num_workers: int) -> int:
        """The same as a number."""
        return num_workers if self.pushes == "workers" else self.pushes

    def refusal(self, num_workers: int) -> str:
        """Why its numbers do not go with so many workers, and what to change; empty: they do."""
        return ""

    @abstractmethod
    def num_states(self, num_workers: int) -> int:
        """Vectors that the shards keep for it."""

    @abstractmethod
    def formula(self, num_workers: int) -> str:
        """What it makes of a push, for `explain`."""

    @abstractmethod
    def build(self, num_workers: int) -> UpdateRule:
        """What computes it."""

    def _start(self, num_workers: int) -> str:
        n = self.num_pushes(num_workers)
        return PUSHED if n == 1 else f"d = mean of what {n} pushes changed, start minus end"


class OuterAverage(OuterSpec):
    """SGD without momentum."""

    source: ClassVar[str] = "Stich 2019"

    name: Literal["average"] = "average"
    """The name of the rule in a spec."""

    lr: float = Field(default=1.0, gt=0, le=100)
    """At 1 the shards make of a push what its worker made of the parameters."""

    def num_states(self, num_workers: int) -> int:
        return 2 * (self.num_pushes(num_workers) > 1)

    def formula(self, num_workers: int) -> str:
        return f"{self._start(num_workers)}; w <- w - {self.lr:g} d"

    def build(self, num_workers: int) -> UpdateRule:
        # Imported here, as below, because a spec is read in processes without torch.
        from trainers.optim.optimizers.sgd.rule import Sgd
        from trainers.optim.outer.rule import Outer

        return Outer(Sgd(), self.num_pushes(num_workers))


class WithMomentum(OuterSpec):
    """Base class of the rules that have one."""

    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of its velocity v that is kept from step to step."""

    def num_states(self, num_workers: int) -> int:
        return 1 + 2 * (self.num_pushes(num_workers) > 1)


class OuterNesterov(WithMomentum):
    """SGD with Nesterov's momentum, as DiLoCo has it."""

    source: ClassVar[str] = "Douillard et al. 2023"

    name: Literal["nesterov"] = "nesterov"
    """The name of the rule in a spec."""

    def formula(self, num_workers: int) -> str:
        b = f"{self.momentum:g}"
        return f"{self._start(num_workers)}; v <- {b} v + d; w <- w - {self.lr:g} (d + {b} v)"

    def build(self, num_workers: int) -> UpdateRule:
        from trainers.optim.optimizers.nesterov.rule import Nesterov
        from trainers.optim.outer.rule import Outer

        return Outer(Nesterov(self.momentum), self.num_pushes(num_workers))


class OuterPolyak(WithMomentum):
    """SGD with Polyak's momentum, the heavy ball."""

    source: ClassVar[str] = "Polyak 1964"

    name: Literal["polyak"] = "polyak"
    """The name of the rule in a spec."""

    def formula(self, num_workers: int) -> str:
        return f"{self._start(num_workers)}; v <- {self.momentum:g} v + d; w <- w - {self.lr:g} v"

    def build(self, num_workers: int) -> UpdateRule:
        from trainers.optim.outer.rule import Outer, Polyak

        return Outer(Polyak(self.momentum), self.num_pushes(num_workers))


class OuterDelayedNesterov(WithMomentum):
    """Every push moves the parameters at once, by its part of a mean; the momentum moves them after every so many."""

    source: ClassVar[str] = "Liu et al. 2024, algorithm 3"

    name: Literal["delayed_nesterov"] = "delayed_nesterov"
    """The name of the rule in a spec."""

    pushes: Annotated[int, Field(ge=1, le=4096)] | Literal["workers"] = "workers"
    """N: pushes from one step of the momentum to the next; `workers`: as many as the workers with which the run
    begins, or of `mixed` the groups. At 1 it is `nesterov`."""

    activation: float = Field(default=0.0, ge=0, le=1)
    """c: share of the momentum's step that is made at each push between, 1 / N at most."""

    def refusal(self, num_workers: int) -> str:
        n = self.num_pushes(num_workers)
        if self.activation * n <= 1:
            return ""
        return f"activation is 1 / N at most, with N = pushes; use {1 / n:.4g} or less"

    def num_states(self, num_workers: int) -> int:
        return 3

    def formula(self, num_workers: int) -> str:
        n, b, c = self.num_pushes(num_workers), f"{self.momentum:g}", self.activation
        between = f"w <- w - {self.lr:g} (d / {n}{f' + {c * self.momentum:g} v' if c else ''})"
        last = f"v <- {b} v + their mean, w <- w - {self.lr:g} (d / {n} + {(1 - c * n + c) * self.momentum:g} v)"
        return f"{PUSHED}; {between}; with each {n} pushes: {last}"

    def build(self, num_workers: int) -> UpdateRule:
        from trainers.optim.outer.rule import DelayedNesterov, Outer

        return Outer(DelayedNesterov(self.momentum, self.num_pushes(num_workers), self.activation))


AnyOuter = Annotated[OuterAverage | OuterNesterov | OuterPolyak | OuterDelayedNesterov, Field(discriminator="name")]
