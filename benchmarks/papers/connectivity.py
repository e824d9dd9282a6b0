"""`python -m benchmarks.papers.connectivity ROOT`: what restricted and projected connectivity cost in test error.

A network of AlexNet's proportions, two convolutions and fully connected layers of 256, 512, 512, 512 and 10, trains
with `hybrid` on 10,000 images of Fashion-MNIST for 6 epochs on four workers, momentum 0.9, the rate 0.02 for 64
examples an update, by the cosine. Its two layers between the first and the last are whole, restricted to blocks, or see
the other blocks through projections of a rank. Bytes are what all workers send an example beyond the run with as many
blocks as workers, in which nothing travels between these layers. Whole layers are measured with `split: outputs`, as
the paper divides them, where what the last layer sees travels as well, and with `pairs`, which exchanges less. The
model depends on blocks and rank alone, so the errors are those of any number of workers.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from torch import nn

from benchmarks.measurement import machine
from benchmarks.measurement.processes import alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread
from benchmarks.measurement.workload import REPOSITORY
from service.claims.experiments.networks import small_alexnet
from trainers.events import Event
from trainers.spec import TrainSpec

PICTURE = REPOSITORY / "docs" / "images" / "connectivity.svg"
WORKERS = 4
UNITS = 512
WHOLE, NOTHING = "whole, outputs", f"{WORKERS} blocks"
RANKS = (1, 2, 4, 8, 16, 32, 64, UNITS // WORKERS)
VARIANTS: dict[str, dict[str, Any]] = {
    WHOLE: {"split": "outputs"},
    "whole, pairs": {},
    **{f"{blocks} blocks": {"connect": {"blocks": blocks}} for blocks in (2, 4, 8, 16, 32)},
    **{f"rank {rank}": {"connect": {"blocks": WORKERS, "rank": rank}} for rank in RANKS},
}
"""Options of `hybrid`."""
HEADER = ("connectivity", "test error, median", "min..max", "above whole, median", f"bytes an example beyond {NOTHING}")
TIMEOUT_S = 1800.0
Found = dict[str, float]
"""Of one run: its test error, the bytes that all workers sent, the examples trained."""


def network(num_classes: int, **_: Any) -> nn.Sequential:
    """That of the claims, with one more fully connected layer of 512 units."""
    layers = [*small_alexnet(num_classes)]
    return nn.Sequential(*layers[:-1], nn.Linear(UNITS, UNITS), nn.ReLU(), layers[-1])


def spec_of(variant: str, root: Path, seed: int) -> TrainSpec:
    """One variant on the images in `root`."""
    fields = {
        "data": {"name": "fashion_mnist", "root": str(root), "limit": 10_000},
        "model": "benchmarks.papers.connectivity:network",
        "algorithm": {"name": "hybrid"} | VARIANTS[variant],
        "workers": WORKERS,
        "batch": 16,
        "epochs": 6,
        "seed": seed,
        "optimizer": {"name": "momentum", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.0005},
        "schedule": "cosine",
        "evaluate": {"every_epochs": 6},
        "checkpoint": {"every_epochs": 0},
    }
    return TrainSpec.model_validate(fields)


def measure(variant: str, root: Path, seed: int) -> Found:
    """Train to the end on an embedded Ray."""
    from trainers import train

    sent = 0

    def count(event: Event) -> None:
        nonlocal sent
        sent += event.data.get("sent_bytes", 0) if event.type == "step" else 0

    with tempfile.TemporaryDirectory() as folder:
        result = train(spec_of(variant, root, seed), Path(folder) / "run", count)
    return {"error": 1 - result.metrics["accuracy"], "sent_bytes": sent, "examples": result.examples}


def bytes_beyond(runs: dict[str, list[Found]], name: str) -> float:
    """What all workers send each other an example beyond the run in which nothing travels between the layers."""
    each, least = (Spread(tuple(f["sent_bytes"] / f["examples"] for f in runs[of])).median for of in (name, NOTHING))
    return max(0.0, each - least)


def errors(runs: dict[str, list[Found]], name: str) -> Spread:
    """In percent, over seeds."""
    return Spread(tuple(100 * found["error"] for found in runs[name]))


def markdown(runs: dict[str, list[Found]], loads: tuple[str, str]) -> str:
    """The whole report."""
    rows, whole = [], errors(runs, WHOLE)
    for name in runs:
        found = errors(runs, name)
        above = Spread(tuple(a - b for a, b in zip(found.values, whole.values, strict=True))).median
        told = (f"{found.median:.2f} %", f"{found.low:.2f}..{found.high:.2f}", f"{above:+.2f}")
        rows.append((name, *told, f"{bytes_beyond(runs, name):,.0f}"))
    assert __doc__ is not None
    parts = [
        "# What restricted and projected connectivity cost",
        as_bullets(
            {**machine.describe(), "load average before": loads[0], "after": loads[1], "seeds": str(len(whole.values))}
        ),
        __doc__.partition("\n\n")[2].replace("\n", " ").strip(),
        as_table(HEADER, rows),
    ]
    return "\n\n".join(parts) + "\n"


def picture(runs: dict[str, list[Found]]) -> Figure:
    """The test errors over what travels: a curve over the ranks, and points for all others."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    ranks = [name for name in runs if name.startswith("rank")]

    def draw(names: Sequence[str], label: str, form: str, colour: str, aside: tuple[int, int] = (4, 4)) -> None:
        found = [errors(runs, name) for name in names]
        medians = [each.median for each in found]
        apart = [[each.median - each.low for each in found], [each.high - each.median for each in found]]
        bytes_ = [bytes_beyond(runs, name) for name in names]
        axes.errorbar(bytes_, medians, apart, fmt=form, color=colour, capsize=3, label=label)
        for x, y, name in zip(bytes_, medians, names, strict=True):
            side = "left" if aside[0] > 0 else "right"
            told = name.removeprefix("rank ").removeprefix("whole, ").removesuffix(" blocks")
            axes.annotate(told, (x, y), aside, textcoords="offset points", fontsize=8, ha=side)

    draw([NOTHING, *ranks], f"{WORKERS} blocks, by rank", "o-", "#0072B2")
    draw([name for name in runs if name.startswith("whole")], "whole layers, by split", "s", "#D55E00", (5, -10))
    others = [name for name in runs if name.endswith("blocks") and name != NOTHING]
    draw(others, "other numbers of blocks", "^", "#009E73", (-5, 0))
    axes.set_xscale("symlog", linthresh=1e3)
    axes.set_xlim(right=3 * max(bytes_beyond(runs, name) for name in runs))  # room for the names
    axes.set(
        xlabel=f"bytes an example beyond those of {NOTHING}, of all workers", ylabel="test error, % (median, all seeds)"
    )
    axes.legend(frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 where the images are not there."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.connectivity", description=__doc__)
    parser.add_argument("root", type=Path, help="the folder with Fashion-MNIST")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each variant (default 5)")
    parser.add_argument("--report", action="store_true", help="write the dated report and the picture")
    options = parser.parse_args(arguments)
    if not (options.root / "FashionMNIST").is_dir():
        parser.error(f"there is no folder FashionMNIST in {options.root}")
    exit_on_sigterm()
    console, before = Console(), machine.load()
    runs: dict[str, list[Found]] = {name: [] for name in VARIANTS}
    for seed in range(options.seeds):
        for name, found in runs.items():
            found.append(alone(measure, name, options.root, seed, timeout_s=TIMEOUT_S))
            print(name, f"seed {seed}", json.dumps(found[-1]), flush=True)
    text = markdown(runs, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        path = report_path("connectivity")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n")
        picture(runs).savefig(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
