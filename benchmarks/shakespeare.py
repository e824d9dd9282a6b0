"""`python -m benchmarks.shakespeare`: the validation loss of a small GPT on Shakespeare's works, by algorithm.

Every algorithm trains 24,000 windows of 64 characters, one and a half times the text, and one more where the minibatch
that ends an epoch is short. An update is one change of the parameters: `sync` makes 2,001, each from the 12 windows of
two virtual workers; `downpour` one for each push of a worker's 6 windows, about 4,000; in `parallel_sgd` either worker
makes 2,001 of its own from 6 windows each, and every second one is followed by an average.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from benchmarks.measurement import machine
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.processes import alone, exit_on_sigterm
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import REPOSITORY, SHAKESPEARE
from trainers.spec import TrainSpec

EXAMPLE = REPOSITORY / "examples" / "shakespeare-gpt.yaml"
VARIANTS: dict[str, dict[str, Any]] = {
    "sync": {},
    "downpour": {"algorithm": {"name": "downpour", "max_staleness": 1}, "ps": 2},
    "parallel_sgd": {"algorithm": {"name": "parallel_sgd", "average_every": 2}, "lr": 0.003},
}
"""What differs from the example."""
BOUND, NEAR = 1.88, 0.05
HEADER = ("algorithm", "validation loss, median", "min..max", "perplexity", "windows", "minutes")
TIMEOUT_S = 7200.0
Found = dict[str, float]
"""Of one run: loss, perplexity, windows trained, seconds."""


def spec_of(variant: str, text: Path, seed: int) -> TrainSpec:
    """The example with one algorithm, on this text."""
    spec = yaml.safe_load(EXAMPLE.read_text())
    changes = dict(VARIANTS[variant])
    spec.pop("name")
    spec["optimizer"]["lr"] = changes.pop("lr", spec["optimizer"]["lr"])
    spec["data"]["root"] = str(text)
    return TrainSpec.model_validate(spec | changes | {"seed": seed})


def measure(variant: str, text: Path, seed: int) -> Found:
    """Train to the end on an embedded Ray."""
    from trainers import train

    with tempfile.TemporaryDirectory() as folder:
        result = train(spec_of(variant, text, seed), Path(folder) / "run")
    return {
        "loss": result.metrics["loss"],
        "perplexity": result.metrics["perplexity"],
        "windows": result.examples,
        "seconds": result.wall_s,
    }


def markdown(runs: dict[str, list[Found]], loads: tuple[str, str]) -> str:
    """The whole report."""
    losses = {name: Spread(tuple(found["loss"] for found in each)) for name, each in runs.items()}
    rows, verdicts = [], [verdict(Target("sync: validation loss", BOUND, "at most"), losses.get("sync"))]
    for name, each in runs.items():
        loss = losses[name]
        others = [Spread(tuple(f[key] for f in each)).median for key in ("perplexity", "windows", "seconds")]
        told = (f"{others[0]:.2f}", f"{others[1]:,.0f}", f"{others[2] / 60:.1f}")
        rows.append((name, f"{loss.median:.3f}", f"{loss.low:.3f}..{loss.high:.3f}", *told))
        if name != "sync" and "sync" in losses:
            pairs = zip(loss.values, losses["sync"].values, strict=False)
            apart = Spread(tuple(ours - base for ours, base in pairs))
            verdicts.append(verdict(Target(f"{name}: validation loss above that of sync", NEAR, "at most"), apart))
    seeds = len(next(iter(runs.values())))
    assert __doc__ is not None
    parts = [
        "# Shakespeare: a small GPT by algorithm",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1], "seeds": str(seeds)}),
        __doc__.partition("\n\n")[2].replace("\n", " ").strip(),
        "Model: 4 layers, 4 heads, width 128, 0.8 M parameters. The first 90 % of the characters are for training, and "
        "the loss is that of all windows of the rest. Settings: `examples/shakespeare-gpt.yaml`; the others differ by "
        + "; ".join(f"`{name}`: `{json.dumps(changes)}`" for name, changes in VARIANTS.items() if changes)
        + ".",
        as_table(HEADER, rows),
        "## Against the contract",
        as_table(VERDICTS, verdicts),
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 where there is no text."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shakespeare", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each algorithm (default 3)")
    parser.add_argument("--text", type=Path, default=SHAKESPEARE, help="the file with the characters")
    parser.add_argument("--only", choices=VARIANTS, help="one algorithm")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    if not options.text.is_file():
        parser.error(f"there is no text at {options.text}; name a file with --text")
    exit_on_sigterm()
    console, before = Console(), machine.load()
    runs: dict[str, list[Found]] = {name: [] for name in ([options.only] if options.only else VARIANTS)}
    for seed in range(options.seeds):
        for name, found in runs.items():
            found.append(alone(measure, name, options.text, seed, timeout_s=TIMEOUT_S))
            print(name, f"seed {seed}", json.dumps(found[-1]), flush=True)
    text = markdown(runs, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        path = report_path("shakespeare")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
