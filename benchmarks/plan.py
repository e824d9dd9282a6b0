"""`python -m benchmarks.plan`: the cost model against the four papers' tables and against the newest runs, row by row,
and how fast it is."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import machine
from benchmarks.measurement.report import RESULTS, as_bullets, as_table, report_path
from benchmarks.papers.parameter_servers import paper_3
from benchmarks.papers.tables import (
    PaperTable,
    many_candidates,
    paper_1,
    paper_2,
    paper_4,
    some_cluster,
    some_work,
)
from benchmarks.predictions.ledger import Ledger
from benchmarks.predictions.report import Comparison
from benchmarks.scale.report import RATES, TARGET, rate_rows
from benchmarks.scale.rig import Figures
from trainers.cost.planning import Machines, fleet_of, step_of
from trainers.cost.simulation.simulate import simulate
from trainers.cost.workload import pace_of
from trainers.spec import TrainSpec

CANDIDATES = 10_000
MOST_S = 1.0
SIMULATED = 256
MOST_SIMULATED_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0: the report says which bounds are missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    tables, seconds, simulated_s = all_tables(), speed(), simulation_speed()
    text = "\n\n".join([markdown(tables, seconds, simulated_s), *runs(), *shards()]) + "\n"
    Console().print(text, markup=False)
    if options.report:
        report_path("plan").write_text(text)
    return 0


def all_tables() -> list[PaperTable]:
    """In the papers' order."""
    return [*paper_1(), paper_2(), paper_3(), *paper_4()]


def speed() -> float:
    """Seconds for the candidates of the slower of two algorithms and the other: the second time, with tables at hand
    that belong to the numbers of workers only."""
    predict = many_candidates(CANDIDATES)
    predict()
    begun = time.perf_counter()
    predict()
    return (time.perf_counter() - begun) / 2


def simulation_speed() -> float:
    """Seconds that 1,000 steps of each of 256 workers of Downpour take, event by event, with a spread of a tenth."""
    spec = TrainSpec.model_validate({"algorithm": "downpour", "workers": SIMULATED})
    work, cluster = some_work(), some_cluster()
    pace = replace(pace_of(cluster.device, work, 32), spread=0.1)
    machines = Machines(cluster, pace, "")
    fleet = fleet_of(spec, machines, [SIMULATED])
    begun = time.perf_counter()
    simulate(spec, work, pace, fleet, step_of(spec, work, pace, fleet))
    return time.perf_counter() - begun


def markdown(tables: Sequence[PaperTable], seconds: float, simulated_s: float) -> str:
    """The whole report."""
    where = {**machine.describe(), "load average": machine.load()}
    parts = ["# The cost model against the papers", as_bullets(where)]
    parts.append(
        "What `millrace plan` predicts for what the four papers measured, by closed forms except where a table says "
        "that runs are simulated. Constants are listed with each table; one that is fitted is fitted without the row "
        "that it predicts, and stands beside it."
    )
    for table in tables:
        rows = [
            (row.name, f"{row.printed:,.4g}", f"{row.predicted:,.4g}", f"{row.error:+.1%}", row.constants)
            for row in table.rows
        ]
        header = ("row", f"printed, {table.unit}", "predicted", "error", "fitted constants")
        parts += [f"## {table.title}", as_table(header, rows), f"Bounds: {table.verdict}."]
        parts.append("\n".join(f"- {constant}" for constant in table.constants))
        parts += table.remarks
    met = "met" if seconds <= MOST_S else "**missed**"
    parts += ["## How fast", f"{CANDIDATES:,} candidates take {seconds:.2f} s; at most {MOST_S:g} s: {met}."]
    met = "met" if simulated_s <= MOST_SIMULATED_S else "**missed**"
    parts.append(
        f"{SIMULATED} simulated workers of `downpour` take {simulated_s:.1f} s for 1,000 steps each; at most "
        f"{MOST_SIMULATED_S:g} s: {met}."
    )
    return "\n\n".join(parts)


def runs() -> list[str]:
    """The newest runs that `benchmarks.predictions` has measured on such a processor, against the model of now."""
    path = newest("predictions", ".jsonl")
    comparison = None if path is None else Comparison(Ledger(path))
    if path is None or comparison is None or not comparison.rows:
        return ["## Runs on throttled links", "`python -m benchmarks.predictions` has measured none here."]
    about = f"From [its own report]({path.with_suffix('.md').name}), on {comparison.ledger.machine['processor']}."
    return ["## Runs on throttled links", about, *comparison.tables(level=3)]


def shards() -> list[str]:
    """Likewise of `benchmarks.scale`."""
    title = "## Paper 2, section 5.2.1, with real shards and workers that sleep"
    path = newest("scale", ".json")
    if path is None:
        return [title, "`python -m benchmarks.scale` has measured none here."]
    figures = [Figures(**each) for each in json.loads(path.read_text())]
    about = f"From [its own report]({path.with_suffix('.md').name}): {TARGET.name}, {TARGET.kind} {TARGET.bound:g}."
    return [title, about, as_table(RATES, rate_rows(figures))]


def newest(name: str, suffix: str) -> Path | None:
    """What a benchmark has written last on a processor of this one's maker."""
    return max(RESULTS.glob(f"*-{name}-{machine.maker()}{suffix}"), default=None)


if __name__ == "__main__":
    sys.exit(main())
