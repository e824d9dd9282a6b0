"""A plan as a picture: the rate against the workers, and what a step consists of."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from trainers.cost.plan import Candidate, Plan
from trainers.cost.plan_table import PlanTable
from trainers.cost.simulation.timeline import WAITS, Timeline


def plot_plan(plan: Plan, path: Path) -> None:
    """Write a PNG; with the step's timeline where the recommended candidate was simulated."""
    simulated = plan.of(plan.recommended).simulated
    figure = Figure(figsize=(11, 4.5 if simulated is None else 9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1 if simulated is None else 2, 2)
    _rates(figure.add_subplot(grid[0, 0]), plan)
    _parts(figure.add_subplot(grid[0, 1]), PlanTable(plan).shown)
    if simulated is not None:
        _timeline(figure.add_subplot(grid[1, :]), simulated.timeline)
    figure.savefig(path, format="png", dpi=120)


def _rates(axes: Axes, plan: Plan) -> None:
    workers = [each.workers for each in plan.candidates]
    first = plan.candidates[0]
    alone = first.examples_per_s / first.speed_up
    axes.plot(workers, [each.examples_per_s for each in plan.candidates], "o-", markersize=3, label="predicted")
    axes.plot(workers, [alone * count for count in workers], "--", color="grey", label="each as fast as one alone")
    if plan.corner is not None and plan.corner <= workers[-1]:
        axes.axvline(plan.corner, color="tab:red", linestyle=":", label="(T + tau)/tau, the shards' limit")
    axes.plot(plan.recommended, plan.of(plan.recommended).examples_per_s, "*", markersize=12, label="recommended")
    axes.set(title=f"{plan.model}, {plan.algorithm}, {plan.cluster}", xlabel="workers", ylabel="examples a second")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _parts(axes: Axes, candidates: Sequence[Candidate]) -> None:
    bars = {"computing": [1000 * each.computing_s for each in candidates]}
    bars["data"] = [1000 * each.data_s for each in candidates]
    for index, exchange in enumerate(candidates[0].exchanges):
        seconds = (each.exchanges[index].total_s - each.exchanges[index].hidden_s for each in candidates)
        bars[exchange.name] = [1000 * each for each in seconds]
    bars["waits"] = [1000 * each.waiting_s for each in candidates]
    names, bottom = [str(each.workers) for each in candidates], [0.0] * len(candidates)
    for name, heights in bars.items():
        axes.bar(names, heights, bottom=bottom, label=name)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    axes.set(title="a step, without what is hidden", xlabel="workers", ylabel="ms")
    axes.legend(fontsize="small")


def _timeline(axes: Axes, timeline: Timeline) -> None:
    names = [row.who for row in timeline.tracks]
    placed = [(place, span) for place, row in enumerate(timeline.tracks) for span in row.spans]
    for kind in timeline.kinds:
        bars = [(place, span) for place, span in placed if span.what == kind]
        axes.barh(
            [place for place, _ in bars],
            [1000 * (span.end_s - span.begin_s) for _, span in bars],
            left=[1000 * span.begin_s for _, span in bars],
            label=kind,
            color="lightgrey" if kind == WAITS else None,
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(title="a step, as simulated", xlabel="ms", xlim=(0, 1000 * timeline.seconds))
    axes.legend(fontsize="small")
