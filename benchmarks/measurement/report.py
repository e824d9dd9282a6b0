"""The benchmark's result for people: tables on the terminal, and a dated Markdown file."""

import json
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import machine
from benchmarks.measurement.results import BARE, DDP, LIMIT, LIMIT_OURS, RAY_ASYNC, Results
from benchmarks.measurement.statistics import Spread

RESULTS = Path(__file__).resolve().parents[1] / "results"
SMALLEST_SHOWN = 0.05  # of the parameters' size, in the table of a worker's memory
LARGE = 1000  # figures from here on are shown as whole numbers
Rows = list[tuple[str, ...]]


def rate_rows(results: Results) -> Rows:
    """A line a contender: examples/s, its spread, CPU, and the paired ratios."""
    rows: Rows = []
    for name in results.contenders:
        rate, cpu = results.rate(name), results.spread(name, lambda m: m.cpu_s_per_step * 1000)
        assert rate is not None
        assert cpu is not None
        ratios = [_ratio(results.ratio(name, base)) for base in (DDP, RAY_ASYNC, LIMIT)]
        rows.append((name, f"{rate.median:,.0f}", *_spread(rate, ",.0f"), f"{cpu.median:.1f}", *ratios))
    return rows


RATE_HEADER = (
    "contender",
    "examples/s",
    "min..max",
    "quartiles",
    "CPU ms a step",
    "to DDP",
    "to Ray async",
    "to limit",
)


def verdict_rows(results: Results) -> Rows:
    """A line a bound of the contract."""
    rows: Rows = []
    for target, spread in results.verdicts():
        found = ("-", "-") if spread is None else (f"{spread.median:.3g}", f"{spread.low:.3g}..{spread.high:.3g}")
        beyond = "" if target.in_reach is None else f" ({target.in_reach:g} in reach)"
        rows.append((target.name, f"{target.kind} {target.bound:g}{beyond}", *found, target.verdict(spread)))
    return rows


VERDICT_HEADER = ("what", "bound", "median", "min..max", "verdict")


def print_tables(results: Results, console: Console) -> None:
    """Both tables, and what failed."""
    for title, header, rows in (
        ("Throughput", RATE_HEADER, rate_rows(results)),
        ("Against the contract", VERDICT_HEADER, verdict_rows(results)),
    ):
        table = Table(title=title)
        for i, column in enumerate(header):
            table.add_column(column, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for name, reason in results.failures.items():
        console.print(f"{name}: not measured: {reason}", style="red", markup=False)


def markdown(results: Results) -> str:
    """The whole report."""
    parts = [
        "# Throughput of data-parallel SGD on one machine",
        as_bullets({**results.machine, "load average before": results.load_before, "after": results.load_after}),
        "## Settings",
        as_bullets(results.settings),
        "## Examples per second",
        "Medians over the rounds. The contenders take turns within a round; ratios are taken within a round (paired) "
        "and shown as median (min..max). A step is one minibatch of one worker.",
        as_table(RATE_HEADER, rate_rows(results)),
        "## Against the contract",
        as_table(VERDICT_HEADER, verdict_rows(results)),
        *_failures(results),
        *_ours(results),
        *_memory(results),
        *_tried(results),
    ]
    return "\n\n".join(parts) + "\n"


def report_path(name: str) -> Path:
    """Where the report of a benchmark is kept: by its day and the processor's maker, each of whom keeps one."""
    RESULTS.mkdir(exist_ok=True)
    return RESULTS / f"{date.today().isoformat()}-{name}-{machine.maker()}.md"


def write(results: Results) -> Path:
    """The report of `throughput`, and the raw numbers as JSON beside it."""
    path = report_path("throughput")
    path.write_text(markdown(results))
    path.with_suffix(".json").write_text(json.dumps(results.raw(), indent=1) + "\n")
    return path


def _failures(results: Results) -> list[str]:
    return ["## Not measured", as_bullets(results.failures)] if results.failures else []


def _ours(results: Results) -> list[str]:
    """Where the workers' time went, and how far the limit is."""
    rows: Rows = []
    for name in (n for n in results.contenders if n in BARE):
        details = dict.fromkeys(key for each in results.rounds if name in each for key in each[name].details)
        for key in details:
            spread = results.spread(name, lambda m, key=key: m.details.get(key))  # type: ignore[misc]
            if spread is not None:
                form = ",.0f" if spread.median >= LARGE else ".3f"
                rows.append((name, key, f"{spread.median:{form}}", f"{spread.low:{form}}..{spread.high:{form}}"))
        if to_limit := results.ratio(name, LIMIT_OURS):
            rows.append((name, "still missing to the limit with the same products", f"{1 - to_limit.median:.1%}", ""))
    header = ("run", "figure", "median", "min..max")
    return ["## Inside our runs", as_table(header, rows)] if rows else []


def _memory(results: Results) -> list[str]:
    parts: list[str] = []
    for name, memory in results.memory.items():
        rows = [(o, f"{x:+.2f}") for o, x in memory.over.items() if abs(x) >= SMALLEST_SHOWN]
        run, bare = (sum(each.values()) / 1e6 for each in (memory.run, memory.bare))
        parts += [
            f"A run of {name} with {memory.workers} workers adds {run:.0f} MB to its node, from a cold start and with "
            "all that it brings: coordinator, shards, and the server that its processes are forked from. "
            f"{memory.workers} processes that only import torch and build the model hold {bare:.0f} MB. The run's "
            f"difference to them is {memory.multiple:+.1f} times the parameters' {memory.parameter_bytes / 1e6:.1f} MB "
            "a worker. Proportional bytes (PSS), in multiples of the parameters:",
            as_table(("origin", "more a worker than a bare process"), rows),
        ]
    if results.service:
        sizes = ", ".join(f"{name.upper()} {size / 1e6:.0f} MB" for name, size in results.service.items())
        parts.append(f"The service's process: {sizes}.")
    return ["## Memory", *parts] if parts else []


def _tried(results: Results) -> list[str]:
    if not results.tried:
        return []
    rows = [(title, ", ".join(f"{rate:,.0f}" for rate in rates)) for title, rates in results.tried.items()]
    return [
        "## What was tried for the peers",
        "Before the rounds, a short measurement each, taking turns; the best (by its best) was taken.",
        as_table(("configuration", "examples/s"), rows),
    ]


def _ratio(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"


def _spread(spread: Spread, form: str) -> tuple[str, str]:
    first, third = spread.quartiles
    return f"{spread.low:{form}}..{spread.high:{form}}", f"{first:{form}}..{third:{form}}"


def as_bullets(pairs: dict[str, str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in pairs.items())


def as_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
