"""`python -m benchmarks.hybrid`: hybrid parallelism against data parallelism and against one worker, taking turns."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, millrace_runs
from benchmarks.contender import Measurement
from benchmarks.millrace_runs import SENT_BYTES, Ours
from benchmarks.peers import ddp, limit
from benchmarks.peers.ddp import DdpConfig
from benchmarks.processes import MeasurementError, exit_on_sigterm
from benchmarks.report import RESULTS, as_bullets, as_table
from benchmarks.results import DDP, DDP_OURS, LIMIT
from benchmarks.statistics import Spread, Target, paired
from benchmarks.workload import Workload, alexnet, data_title, find_data

SCHEMES = {f"hybrid, scheme {scheme}": Ours("hybrid", scheme=scheme) for scheme in ("a", "b", "c")}
ALONE, ALONE_OURS = "one process alone", "one process alone with Millrace's products"
CONVNET_FLOATS = 4_324_234
TO_DDP, TO_ALONE = Target("convnet: best scheme to DDP", 1.4), Target("alexnet: best scheme to one process alone", 1.85)
BYTES = Target("convnet: bytes a worker sends in a step, to DDP's", 0.1, "at most")

Contender = Callable[[Workload], Measurement]


@dataclass
class Comparison:
    """One model, its contenders, and what was measured round by round."""

    title: str
    work: Workload
    base: str
    contenders: dict[str, Contender]
    rounds: list[dict[str, Measurement]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def round(self, turn: int) -> None:
        """Everyone once, beginning with another one each time; one that fails is left out from then on."""
        names = [name for name in self.contenders if name not in self.failures]
        first, found = turn % len(names), dict[str, Measurement]()
        for name in names[first:] + names[:first]:
            try:
                found[name] = self.contenders[name](self.work)
            except MeasurementError as error:
                self.failures[name] = str(error).strip().splitlines()[-1]
        self.rounds.append(found)

    def ratio(self, name: str) -> Spread | None:
        """Examples/s to the base's, paired."""
        both = [r for r in self.rounds if name in r and self.base in r]
        figures = ([r[n].examples_per_s for r in both] for n in (name, self.base))
        return paired(*figures) if both else None

    def best(self) -> str | None:
        """The scheme with the highest median ratio."""
        found = {name: ratio.median for name in SCHEMES if (ratio := self.ratio(name)) is not None}
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
    for target, comparison in ((TO_DDP, convnet), (TO_ALONE, alex)):
        best = comparison.best()
        rows.append(_verdict(target, comparison.ratio(best) if best else None))
    best, theirs = convnet.best(), 2 * (convnet.work.workers - 1) / convnet.work.workers * 4 * CONVNET_FLOATS
    sent = [r[best].details[SENT_BYTES] / theirs for r in convnet.rounds if best in r] if best else []
    return [*rows, _verdict(BYTES, Spread(tuple(sent)) if sent else None)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrid", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement of convnet (default 8)")
    parser.add_argument("--data-root", type=Path, help="a folder with MNIST in torchvision's layout")
    parser.add_argument("--only", choices=["convnet", "alexnet"], help="one of the two comparisons")
    parser.add_argument("--report", action="store_true", help="write benchmarks/results/<today>-hybrid.md and .json")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    both = comparisons(options.data_root, options.seconds)
    chosen = [c for c, name in zip(both, ("convnet", "alexnet"), strict=True) if options.only in (None, name)]
    with Progress(console=console) as progress:
        task = progress.add_task("rounds", total=options.rounds * len(chosen))
        for turn in range(options.rounds):
            for comparison in chosen:
                comparison.round(turn)
                progress.advance(task)
    text = markdown(both, {"load average before": before, "after": machine.load()})
    console.print(text, markup=False)
    if options.report:
        path = RESULTS / f"{date.today().isoformat()}-hybrid.md"
        path.write_text(text)
        raw = {c.title: [{n: asdict(m) for n, m in r.items()} for r in c.rounds] for c in both}
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return 1 if any(comparison.failures for comparison in chosen) else 0


def markdown(both: tuple[Comparison, Comparison], load: dict[str, str]) -> str:
    """The whole report."""
    header = ("contender", "examples/s", "min..max", "CPU ms a step", "to the base", "bytes a worker sends in a step")
    parts = ["# Hybrid parallelism on one machine", as_bullets({**machine.describe(), **load})]
    parts.append(
        "Medians over the rounds, in which the contenders take turns; ratios are taken within a round (paired). The "
        "base is DDP for convnet and one process alone for alexnet. Processes have one thread each, the optimiser is "
        "momentum SGD (fused for the peers). Bytes are counted by the transport over the measured part; what "
        "DDP sends is 2 (K - 1)/K times the parameters' bytes (paper 4, section 4.1). Peers multiply as torch does by "
        "itself (MKL), Millrace's workers through oneDNN where a layer is large; the rows with Millrace's products "
        "show what of a ratio that explains."
    )
    for comparison in both:
        parts += [f"## {comparison.title}", as_table(header, comparison.rows())]
        parts += [as_bullets(comparison.failures)] if comparison.failures else []
    parts += ["## Against the contract", as_table(("what", "bound", "median", "min..max", "verdict"), verdicts(*both))]
    return "\n\n".join(parts) + "\n"


def _ours(work: Workload, ours: Ours, expected_per_s: float) -> Measurement:
    return millrace_runs.measure(work, ours, expected_per_s)


def _verdict(target: Target, spread: Spread | None) -> tuple[str, ...]:
    found = ("-", "-") if spread is None else (f"{spread.median:.3g}", f"{spread.low:.3g}..{spread.high:.3g}")
    return (target.name, f"{target.kind} {target.bound:g}", *found, target.verdict(spread))


if __name__ == "__main__":
    sys.exit(main())
