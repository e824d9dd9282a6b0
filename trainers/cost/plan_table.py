"""A plan as Markdown. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from trainers.cost.plan import Candidate, Plan, rate_words

HEADINGS = (
    "workers", "examples/s", "speed-up", "efficiency", "step, ms", "computing", "data", "exchanges", "hidden", "waits",
    "MB sent", "held back by", "without it",
)  # fmt: skip
MANY = 12
"""Candidates from which on not all of them are shown."""


@dataclass(frozen=True)
class PlanTable:
    """A plan as a table, with sentences below it: milliseconds of a step, megabytes that a worker sends in one."""

    plan: Plan

    @property
    def shown(self) -> list[Candidate]:
        """All candidates, or of many the powers of two, the last and the recommended one."""
        found = list(self.plan.candidates)
        if len(found) <= MANY:
            return found
        chosen = {found[-1].workers, self.plan.recommended}
        return [each for each in found if each.workers in chosen or not each.workers & (each.workers - 1)]

    @property
    def has_prices(self) -> bool:
        """Whether a price was given."""
        return self.plan.candidates[0].price is not None

    @property
    def title(self) -> str:
        """What is planned, where, and on what ground."""
        plan = self.plan
        shards = "" if plan.shards is None else f", {plan.shards} shards"
        what = f"{plan.model} ({plan.parameters:,} parameters), {plan.algorithm}{shards}"
        return f"{what}, {plan.per_worker} examples a minibatch; on {plan.cluster} ({plan.device}), {plan.basis}"

    @property
    def headings(self) -> tuple[str, ...]:
        """Of the table; the price only where there is one."""
        return (*HEADINGS, "price") if self.has_prices else HEADINGS

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Of the table."""
        return [_cells(each) for each in self.shown]

    @property
    def sentences(self) -> Iterator[str]:
        """What stands below the table."""
        plan = self.plan
        yield f"Recommended: {plan.recommended} worker{'s' if plan.recommended > 1 else ''}: {plan.reason}."
        if plan.corner is not None:
            yield f"The shards are busy all the time from (T + tau)/tau = {plan.corner:,.4g} workers on."
        if plan.memory_bytes is not None:
            has = "" if plan.device_bytes is None else f", and the device has {plan.device_bytes / 1e6:,.0f} MB"
            yield f"A worker needs at least {plan.memory_bytes / 1e6:,.1f} MB for vectors and activations{has}."
        if self.has_prices:
            yield "The price is that of a million examples."
        for note in plan.notes:
            yield f"Not counted, or assumed: {note}."

    @property
    def markdown(self) -> str:
        """All of it."""
        rows = [self.headings, ["---"] * len(self.headings), *self.rows]
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        return "\n\n".join([f"# Plan\n\n{self.title}.", table, *self.sentences]) + "\n"


def _cells(each: Candidate) -> tuple[str, ...]:
    told = (
        str(each.workers), rate_words(each.examples_per_s), f"{each.speed_up:.2f}", f"{each.efficiency:.0%}",
        *(f"{1000 * seconds:,.3g}" for seconds in (each.step_s, each.computing_s, each.data_s)),
        *(f"{1000 * seconds:,.3g}" for seconds in (each.seen_s, each.hidden_s, each.waiting_s)),
        f"{each.sent_bytes / 1e6:,.3g}", each.bottleneck or "nothing", rate_words(each.without_bottleneck),
    )  # fmt: skip
    return told if each.price is None else (*told, f"{each.price:.3g}")
