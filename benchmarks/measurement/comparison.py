"""One model and one set of data, several contenders that take turns, and a table of what they reached."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.progress import Progress

from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import SENT_BYTES
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target, paired
from benchmarks.measurement.workload import Workload

Contender = Callable[[Workload], Measurement]
HEADER = ("contender", "examples/s", "min..max", "CPU ms a step", "to the base", "bytes a worker sends in a step")
VERDICTS = ("what", "bound", "median", "min..max", "verdict")


@dataclass
class Comparison:
    """The contenders by name, and what was measured round by round."""

    title: str
    work: Workload
    base: str
    contenders: dict[str, Contender]
    rounds: list[dict[str, Measurement]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def round(self, turn: int) -> None:
        """Everyone once, beginning with another one each time; one that fails is left out from then on."""
        names = [name for name in self.contenders if name not in self.failures]
        first, found = turn % max(len(names), 1), dict[str, Measurement]()
        for name in names[first:] + names[:first]:
            try:
                found[name] = self.contenders[name](self.work)
            except MeasurementError as error:
                self.failures[name] = str(error).strip().splitlines()[-1]
        self.rounds.append(found)

    def ratio(self, name: str, base: str | None = None) -> Spread | None:
        """Examples/s to the base's, paired."""
        base = base or self.base
        both = [r for r in self.rounds if name in r and base in r]
        figures = ([r[n].examples_per_s for r in both] for n in (name, base))
        return paired(*figures) if both else None

    def best(self, names: Iterable[str]) -> str | None:
        """Which of these has the highest median ratio."""
        found = {name: ratio.median for name in names if (ratio := self.ratio(name)) is not None}
        return max(found, key=lambda name: found[name]) if found else None

    def rows(self) -> list[tuple[str, ...]]:
        """A line a contender."""
        rows = []
        for name in self.contenders:
            found = [r[name] for r in self.rounds if name in r]
            if not found:
                continue
            rate, ratio = Spread(tuple(m.examples_per_s for m in found)), self.ratio(name)
            sent = [m.details[SENT_BYTES] for m in found if SENT_BYTES in m.details]
            cpu = Spread(tuple(1000 * m.cpu_s_per_step for m in found)).median
            told = f"{ratio.median:.2f} ({ratio.low:.2f}..{ratio.high:.2f})" if ratio else "-"
            bytes_ = f"{Spread(tuple(sent)).median:,.0f}" if sent else "-"
            rows.append((name, f"{rate.median:,.1f}", f"{rate.low:,.1f}..{rate.high:,.1f}", f"{cpu:.0f}", told, bytes_))
        return rows


def verdict(target: Target, spread: Spread | None) -> tuple[str, ...]:
    """A line under VERDICTS."""
    found = ("-", "-") if spread is None else (f"{spread.median:.3g}", f"{spread.low:.3g}..{spread.high:.3g}")
    return (target.name, f"{target.kind} {target.bound:g}", *found, target.verdict(spread))


def take_turns(comparisons: Sequence[Comparison], rounds: int, console: Console) -> None:
    """So many rounds of each, one comparison after the other, under a progress bar."""
    with Progress(console=console) as progress:
        task = progress.add_task("rounds", total=rounds * len(comparisons))
        for turn in range(rounds):
            for comparison in comparisons:
                comparison.round(turn)
                progress.advance(task)


def tables(comparisons: Sequence[Comparison], verdicts: Sequence[tuple[str, ...]]) -> list[str]:
    """The parts of a report that show what was measured, and what failed."""
    parts = []
    for comparison in comparisons:
        parts += [f"## {comparison.title}", as_table(HEADER, comparison.rows())]
        parts += [as_bullets(comparison.failures)] if comparison.failures else []
    return [*parts, "## Against the contract", as_table(VERDICTS, list(verdicts))]


def write_report(name: str, text: str, comparisons: Sequence[Comparison]) -> None:
    """The dated report, and the raw numbers as JSON beside it."""
    path = report_path(name)
    path.write_text(text)
    raw = {c.title: [{n: asdict(m) for n, m in r.items()} for r in c.rounds] for c in comparisons}
    path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
