"""A plan as Markdown. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainers.cost.plan import Candidate, Plan, TargetTime, rate_words
from trainers.cost.simulation.simulated import Simulated, Stragglers
from trainers.cost.simulation.timeline import as_text
from trainers.sizes import size_words
from trainers.spec.workers import WorkersSpec

HEADINGS = (
    "workers", "examples/s", "speed-up", "efficiency", "step, ms", "computing", "data", "exchanges",
    "hidden", "waits", "MB sent", "held back by", "without it",
)  # fmt: skip
OPTION_HEADINGS = ("algorithm", "minibatch", "shards", "workers", "examples/s", "regret")
OPTIONS_NOTE = (
    "What else it could be is told by rates alone: a larger batch or staler gradients may need more epochs, and other "
    "algorithms have their default options"
)
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
        """Of the table; interval and price only where there are some."""
        interval = ("9 runs of 10",) if self.plan.candidates[0].least_per_s is not None else ()
        return (*HEADINGS, *interval, *(("price",) if self.has_prices else ()))

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Of the table."""
        return [_cells(each) for each in self.shown]

    @property
    def option_rows(self) -> list[tuple[str, ...]]:
        """Of the table of what else the job could be."""
        return [
            (
                each.algorithm, f"{each.per_worker}", "" if each.shards is None else f"{each.shards}",
                f"{each.workers}", rate_words(each.examples_per_s), f"{each.regret:.0%}",
            )
            for each in self.plan.options
        ]  # fmt: skip

    @property
    def sentences(self) -> Iterator[str]:
        """What stands below the table."""
        plan = self.plan
        yield f"Recommended: {plan.recommended} worker{'s' if plan.recommended > 1 else ''}: {plan.reason}."
        if plan.corner is not None:
            yield (
                f"The shards are busy all the time from (T + tau)/tau = {plan.corner:,.4g} workers on: T is a worker's "
                "own time for a step, tau that of the shards for its push."
            )
        best = plan.of(plan.recommended)
        if best.bottleneck and best.next_bottleneck:
            faster = f"{best.without_bottleneck / best.examples_per_s - 1:.0%}"
            yield f"Without {best.bottleneck} it would be {faster} faster, and {best.next_bottleneck} would be next."
        if best.staleness is not None:
            late = best.staleness
            spread = f"{late.least:,.3g} to {late.most:,.3g} of nine in ten"
            yield f"A gradient is {late.mean:,.3g} updates behind in the mean, {spread}, when a shard applies it."
        if plan.target is not None:
            yield from self._to_target(plan.target)
        for each in plan.candidates:
            if each.simulated is not None:
                yield _simulation(each, each.simulated)
                if each.simulated.stragglers is not None:
                    yield _lateness(each.simulated.stragglers)
        if best.shard_bytes is not None:
            yield f"The fullest shard needs at least {size_words(best.shard_bytes)}."
        if plan.memory_bytes is not None:
            has = "" if plan.device_bytes is None else f", and the device has {size_words(plan.device_bytes)}"
            yield f"A worker needs at least {size_words(plan.memory_bytes)} for vectors and activations{has}."
        if self.has_prices:
            yield "The price is that of a million examples."
        if plan.options:
            yield f"{OPTIONS_NOTE}."
        for note in plan.notes:
            yield f"Not counted, or assumed: {note}."

    @property
    def timelines(self) -> Iterator[tuple[str, str]]:
        """Of the candidates that were simulated: a title, and a step as lines of text."""
        for each in self.plan.candidates:
            if each.simulated is not None:
                timeline = each.simulated.timeline
                what = "A step" if timeline.steps == 1 else f"{timeline.steps} steps"
                left_out = f", {timeline.left_out} of them not shown" if timeline.left_out else ""
                yield f"{what} of {_workers(each)}{left_out}", "\n".join(as_text(timeline))

    def _to_target(self, target: TargetTime) -> Iterator[str]:
        name = f"Time to {target.metric} {target.value:g}"
        if target.seconds:
            shown = {each.workers for each in self.shown}
            times = [
                f"{span_words(seconds)} on {count}" + (f" ({target.prices[count]:.3g})" if target.prices else "")
                for count, seconds in target.seconds.items()
                if count in shown
            ]
            runs = "1 run" if len(target.jobs) == 1 else f"{len(target.jobs)} runs"
            price = ", in brackets the price" if target.prices else ""
            whose = "of this job"
            if target.noise_scale is not None:
                whose = f"with other batches, at a gradient noise scale of {target.noise_scale:,.4g} examples"
            yield f"{name}: {', '.join(times)} (workers){price}; {target.epochs:.3g} epochs, from {runs} {whose}."
        if target.trials:
            where = "" if not target.seconds else " on other numbers of workers"
            counts = [trial.get("workers", {}).get("count", WorkersSpec().count) for trial in target.trials]
            on = ", ".join(map(str, counts))
            on += " worker" if on == "1" else " workers"
            trials = "This trial" if len(counts) == 1 else f"These {len(counts)} trials"
            yield f"{name}{where}: unknown. {trials} would tell: the job on {on} (`target.trials` of -o json)."

    @property
    def markdown(self) -> str:
        """All of it."""
        parts = [f"# Plan\n\n{self.title}.", _table(self.headings, self.rows), *self.sentences]
        if self.plan.options:
            parts += ["## What else it could be", _table(OPTION_HEADINGS, self.option_rows)]
        for title, text in self.timelines:
            parts += [f"## {title}", f"```text\n{text}\n```"]
        return "\n\n".join(parts) + "\n"


def span_words(seconds: float) -> str:
    """A time in its largest fitting unit."""
    for unit, long in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * long:
            return f"{seconds / long:.3g} {unit}"
    return f"{seconds:.3g} s"


def _simulation(each: Candidate, found: Simulated) -> str:
    rates = f"{rate_words(found.examples_per_s)} examples/s ({rate_words(found.low)} to {rate_words(found.high)})"
    stale = f", a gradient is {_staleness(found)} updates behind" if found.staleness else ""
    closed = f"the closed forms say {rate_words(each.examples_per_s)}"
    waits = f"waiting {1000 * found.waiting_s:,.3g} ms a step"
    return f"Simulated, {_workers(each)}: {rates}, {waits}{stale}; {closed}."


def _staleness(found: Simulated) -> str:
    """The mean, and between which nine pushes of ten lie."""
    least, most = (found.staleness_at(share) for share in (0.05, 0.95))
    return f"{found.mean_staleness:,.3g} (of nine pushes in ten {least} to {most})"


def _lateness(found: Stragglers) -> str:
    low, median, high = (1000 * found.quantiles_s[index] for index in (1, 10, 19))
    return (
        f"The slowest of {found.of} costs {1000 * found.mean_s:,.3g} ms, {found.share:.1%} of the time between two "
        f"meetings: {median:,.3g} ms in the median, {low:,.3g} to {high:,.3g} of nine in ten. Without it, it would be "
        f"{1000 * found.without_one_s:,.3g} ms."
    )


def _workers(each: Candidate) -> str:
    return f"{each.workers} worker{'s' if each.workers > 1 else ''}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(each: Candidate) -> tuple[str, ...]:
    told = (
        str(each.workers), rate_words(each.examples_per_s), f"{each.speed_up:.2f}", f"{each.efficiency:.0%}",
        *(f"{1000 * seconds:,.3g}" for seconds in (each.step_s, each.computing_s, each.data_s)),
        *(f"{1000 * seconds:,.3g}" for seconds in (each.seen_s, each.hidden_s, each.waiting_s)),
        f"{each.sent_bytes / 1e6:,.3g}", each.bottleneck or "nothing", rate_words(each.without_bottleneck),
    )  # fmt: skip
    if each.least_per_s is not None and each.most_per_s is not None:
        told += (f"{rate_words(each.least_per_s)} to {rate_words(each.most_per_s)}",)
    return told if each.price is None else (*told, f"{each.price:.3g}")
