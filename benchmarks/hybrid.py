"""`python -m benchmarks.hybrid`: hybrid parallelism against data parallelism and against one worker, taking turns."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.measurement import machine, millrace_runs
from benchmarks.measurement.comparison import Comparison, tables, take_turns, verdict, write_report
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import SENT_BYTES, Ours
from benchmarks.measurement.processes import exit_on_sigterm
from benchmarks.measurement.report import as_bullets
from benchmarks.measurement.results import DDP, DDP_OURS, LIMIT
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import Workload, alexnet, data_title, find_data
from benchmarks.peers import ddp, limit
from benchmarks.peers.ddp import DdpConfig

SCHEMES = {f"hybrid, scheme {scheme}": Ours("hybrid", scheme=scheme) for scheme in ("a", "b", "c")}
ALONE, ALONE_OURS = "one process alone", "one process alone with Millrace's products"
CONVNET_FLOATS = 4_324_234
TO_DDP = Target("convnet: best scheme to DDP", 1.4)
TO_ALONE = Target("alexnet: best scheme to one process alone with the same products", 1.95)
BYTES = Target("convnet: bytes a worker sends in a step, to DDP's", 0.1, "at most")


def comparisons(data_root: Path | None, seconds: float) -> tuple[Comparison, Comparison]:
    """`convnet` against DDP, and AlexNet against one process that has a core and the whole model to itself."""
    small = Workload(find_data(data_root), seconds=seconds)
    large = alexnet(seconds=2.5 * seconds)
    convnet = Comparison(
        f"convnet on {data_title(small.data)}, minibatch {small.minibatch} a worker, 2 workers", small, DDP,
        {
            LIMIT: limit.measure,
            DDP: partial(ddp.measure, config=DdpConfig()),
            DDP_OURS: lambda work: ddp.measure(replace(work, our_products=True), DdpConfig()),
            "sync": partial(_ours, ours=Ours("sync"), expected_per_s=2000.0),
            **{name: partial(_ours, ours=ours, expected_per_s=2000.0) for name, ours in SCHEMES.items()},
        },
    )  # fmt: skip
    alex = Comparison(
        "torchvision's alexnet on random 224x224 images, minibatch 32 a worker, 2 workers", large, ALONE,
        {
            ALONE: lambda work: limit.measure(replace(work, workers=1)),
            ALONE_OURS: lambda work: limit.measure(replace(work, workers=1, our_products=True)),
            LIMIT: limit.measure,
            DDP: partial(ddp.measure, config=DdpConfig()),
            **{name: partial(_ours, ours=ours, expected_per_s=30.0) for name, ours in SCHEMES.items()},
        },
    )  # fmt: skip
    return convnet, alex


def verdicts(convnet: Comparison, alex: Comparison) -> list[tuple[str, ...]]:
    """Every bound and what was found."""
    rows = []
    for target, comparison, base in ((TO_DDP, convnet, DDP), (TO_ALONE, alex, ALONE_OURS)):
        best = comparison.best(SCHEMES)
        rows.append(verdict(target, comparison.ratio(best, base) if best else None))
    best, theirs = convnet.best(SCHEMES), 2 * (convnet.work.workers - 1) / convnet.work.workers * 4 * CONVNET_FLOATS
    sent = [r[best].details[SENT_BYTES] / theirs for r in convnet.rounds if best in r] if best else []
    return [*rows, verdict(BYTES, Spread(tuple(sent)) if sent else None)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement of convnet (default 8)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--only", choices=["convnet", "alexnet"], help="one of the two comparisons")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    both = comparisons(options.data_root, options.seconds)
    chosen = [c for c, name in zip(both, ("convnet", "alexnet"), strict=True) if options.only in (None, name)]
    take_turns(chosen, options.rounds, console)
    text = markdown(both, {"load average before": before, "after": machine.load()})
    console.print(text, markup=False)
    if options.report:
        write_report("hybrid", text, both)
    return 1 if any(comparison.failures for comparison in chosen) else 0


def markdown(both: tuple[Comparison, Comparison], load: dict[str, str]) -> str:
    """The whole report."""
    parts = ["# Hybrid parallelism on one machine", as_bullets({**machine.describe(), **load})]
    parts.append(
        "Medians over the rounds, in which the contenders take turns; ratios are taken within a round (paired). The "
        "base is DDP for convnet and one process alone for alexnet. Processes have one thread each, the optimiser is "
        "momentum SGD (fused for the peers). Bytes are counted by the transport over the measured part; what "
        "DDP sends is 2 (K - 1)/K times the parameters' bytes (paper 4, section 4.1). Peers multiply as torch does by "
        "itself (MKL), Millrace's workers through oneDNN where a layer is large; the rows with Millrace's products "
        "show what of a ratio that explains."
    )
    return "\n\n".join([*parts, *tables(both, verdicts(*both))]) + "\n"


def _ours(work: Workload, ours: Ours, expected_per_s: float) -> Measurement:
    return millrace_runs.measure(work, ours, expected_per_s)


if __name__ == "__main__":
    sys.exit(main())
