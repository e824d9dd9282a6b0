"""The report of `python -m benchmarks.scale`: rates against the bound, what they cost, and what grows faster."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measurement import machine
from benchmarks.measurement.report import as_bullets, as_table
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.scale.rig import Figures
from benchmarks.scale.sleepers import Sleepers

TARGET = Target("achieved rate to min(K/T, 1/tau)", 0.95)
LINEAR = 1.5
"""What a step may cost on the most workers, in multiples of what it costs on the fewest: more is no longer linear."""


@dataclass(frozen=True)
class Report:
    """All that was measured."""

    sleepers: Sleepers
    figures: Sequence[Figures]
    seconds: float
    loads: tuple[str, str]


RATES = (
    "workers",
    "steps/s",
    "bound",
    "of it",
    "verdict",
    "ready after, s",
    "killed: seen, s",
    "replaced, s",
    "left, s",
)
COSTS = (
    "workers", "coordinator, ms a step", "coordinator, cores", "shard, ms a step", "a worker, ms a step", "events/s",
    "coordinator, MB", "a worker's own, MB",
)  # fmt: skip


def rate_rows(figures: Sequence[Figures]) -> list[tuple[str, ...]]:
    """A line a number of workers."""
    return [
        (
            str(each.workers), f"{each.steps_per_s:.2f}", f"{each.bound:.2f}", f"{each.ratio:.3f}",
            TARGET.verdict(Spread((each.ratio,))), f"{each.start_s:.1f}",
            *map(_s, (each.death_s, each.back_s, each.leave_s)),
        )
        for each in figures
    ]  # fmt: skip


def cost_rows(report: Report) -> list[tuple[str, ...]]:
    """Likewise."""
    return [
        (
            str(each.workers), f"{each.coordinator_ms:.2f}", f"{each.coordinator_s:.3f}",
            f"{1000 * each.shard_s / each.steps_per_s:.2f}", f"{1000 * each.workers_s / each.steps_per_s:.2f}",
            f"{each.events_per_s:.1f}", f"{each.coordinator_bytes / 1e6:.0f}", f"{each.worker_bytes / 1e6:.0f}",
        )
        for each in report.figures
    ]  # fmt: skip


def markdown(report: Report) -> str:
    """The whole report."""
    sleepers = report.sleepers
    settings = {
        "T": f"{sleepers.think_s:g} s: a worker sleeps so long in its forward pass",
        "tau": f"{sleepers.serve_s:g} s: a shard sleeps so long in each update; so P = T/tau = {sleepers.corner:g}",
        "vectors": f"{sleepers.numel:,} float32 numbers, fetched and pushed in every step, in shared memory",
        "why these": f"{1 / sleepers.serve_s:g} steps a second at most, so that two cores carry 256 workers: what "
        "limits is the shard's sleep, not the processor",
        "run": "`downpour`, 1/1, any staleness; coordinator, shard, workers, leases, journal and log as in any run",
        "cores": "the workers, which stand for as many machines, get what coordinator, shard and Ray leave: the lowest "
        "priority, once all of them train",
        "rate": f"slope of the updates in the log over {report.seconds:g} s, after 1.5 steps of all workers",
        "ms a step": "CPU milliseconds of the role's processes, divided by the steps of all workers; what goes on by "
        "the clock, as heartbeats do, is in them",
    }
    loads = {"load average before": report.loads[0], "after": report.loads[1]}
    said = machine.disturbed(report.loads[0])
    return (
        "\n\n".join(
            [
                "# Real shards under sleeping workers",
                as_bullets({**machine.describe(), **loads}),
                *([said] if said else []),
                as_bullets(settings),
                f"## {TARGET.name}, {TARGET.kind} {TARGET.bound:g}",
                as_table(RATES, rate_rows(report.figures)),
                "## What a step costs",
                as_table(COSTS, cost_rows(report)),
                growth(report.figures),
            ]
        )
        + "\n"
    )


def growth(figures: Sequence[Figures]) -> str:
    """Whether the coordinator's and the shard's work for a step stays what it is while the workers become more."""
    if len(figures) < 2:
        return "One number of workers says nothing about growth."
    first, last = figures[0], figures[-1]
    busy = [
        (role, getattr(last, role + "_s") / last.steps_per_s / (getattr(first, role + "_s") / first.steps_per_s))
        for role in ("coordinator", "shard")
        if getattr(first, role + "_s")
    ]
    return " ".join(
        f"A step costs the {role} {times:.2f} times on {last.workers} workers what it costs on {first.workers}: "
        + ("no more than linear." if times <= LINEAR else "**more than linear**.")
        for role, times in busy
    )


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"
