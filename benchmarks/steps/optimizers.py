"""`python -m benchmarks.steps.optimizers`: what an update costs: every optimizer against momentum, and torch.optim.

On one thread, from one of two buffers into the other, as workers and shards make it; those of torch work in place. The
CPU time of an update is counted, in short rounds in which all take turns.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.measurement import machine
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target, paired
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import initial_state
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spec import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    AnyOptimizer,
    LionSpec,
    MomentumSpec,
    NesterovSpec,
    RmspropSpec,
    SgdSpec,
)

NUMEL = 4_300_000
BASE = "momentum"
ADAMW = Target("adamw: an update to one of momentum", 1.3, "at most")
OURS: tuple[AnyOptimizer, ...] = (
    SgdSpec(),
    MomentumSpec(),
    NesterovSpec(),
    RmspropSpec(),
    AdagradSpec(),
    AdamSpec(),
    AdamWSpec(),
    LionSpec(),
)
HEADER = ("update", "ms", "quartiles", f"to {BASE}", "quartiles")
Times = dict[str, list[float]]
"""Contender -> seconds of CPU of an update, round by round."""


def ours(spec: AnyOptimizer) -> Callable[[], object]:
    """An update of ours, of the mean of 64 examples' gradients."""
    rule = spec.build()
    versions = [Buffers(torch.randn(NUMEL), initial_state(rule, torch.empty(NUMEL))) for _ in range(2)]
    update = SliceUpdate(Optimizer(rule, spec.weight_decay), NUMEL, torch.device("cpu"))
    contribution = Contribution(TensorGradient(torch.randn(NUMEL)), 64, 0.001)

    def step() -> None:
        update.apply([contribution], *versions)
        versions.reverse()

    return step


def theirs(kind: type[torch.optim.Optimizer], **options: float | bool) -> Callable[[], object]:
    """An update of torch's, of a gradient that is a mean already."""
    parameter = torch.randn(NUMEL, requires_grad=True)
    parameter.grad = torch.randn(NUMEL)
    return kind([parameter], lr=0.001, **options).step  # type: ignore[call-arg]


def measure(rounds: int) -> Times:
    """Everyone once a round, beginning with another one each time."""
    contenders = {spec.name: ours(spec) for spec in OURS}
    for way in ("foreach", "fused"):
        contenders[f"torch's momentum, {way}"] = theirs(torch.optim.SGD, momentum=0.9, **{way: True})
        contenders[f"torch's adamw, {way}"] = theirs(torch.optim.AdamW, **{way: True})
    for step in contenders.values():
        step()  # the first also makes its buffers
        step()
    names, times = list(contenders), Times({name: [] for name in contenders})
    for turn in track(range(rounds), "rounds"):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            begun = time.thread_time()
            contenders[name]()
            times[name].append(time.thread_time() - begun)
    return times


def markdown(times: Times, load: dict[str, str]) -> str:
    """The whole report."""
    rows = []
    for name, found in times.items():
        spread, ratio = Spread(tuple(1000 * s for s in found)), paired(found, times[BASE])
        quartiles = ["..".join(f"{x:.2f}" for x in each.quartiles) for each in (spread, ratio)]
        rows.append((name, f"{spread.median:.2f}", quartiles[0], f"{ratio.median:.2f}", quartiles[1]))
    return (
        "\n\n".join(
            [
                f"# An update of {NUMEL / 1e6:.1f} M parameters",
                as_bullets({**machine.describe(), **load, "rounds": str(len(times[BASE]))}),
                __doc__.partition("\n\n")[2].strip().replace("\n", " ")
                + " Ours divide the summed gradient by the examples, which torch's do not. Adam's end in the bits of "
                "`fused`, the others' in those of `foreach`.",
                as_table(HEADER, rows),
                "## Against the contract",
                as_table(VERDICTS, [verdict(ADAMW, paired(times["adamw"], times[BASE]))]),
            ]
        )
        + "\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show, and with --report keep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.optimizers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="how often everyone is measured (default 200)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    before = machine.load()
    times = measure(options.rounds)
    text = markdown(times, {"load average before": before, "after": machine.load()})
    Console().print(text, markup=False)
    if options.report:
        path = report_path("optimizers")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(times) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
