"""`python -m benchmarks.precision`: how far 16 bits bring three tasks away from float32.

A classifier of digits, a regression on a table and a small GPT, which `sync` trains with two virtual workers: in
float32, computed in bfloat16 (`precision`), with gradients that travel as bfloat16 (`wire`), and with both. A run has
the same bits on any number of workers, so it is made in one process. What is told is the metric after the last epoch.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.measurement import machine
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.measurement.workload import SHAKESPEARE
from trainers.spec import TrainSpec

PLAIN = "float32"
VARIANTS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "precision: bfloat16": {"precision": "bfloat16"},
    "wire: bfloat16": {"wire": "bfloat16"},
    "both": {"precision": "bfloat16", "wire": "bfloat16"},
}
TASKS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": "digits",
        "model": "mlp",
        "batch": 16,
        "optimizer": {"name": "momentum", "lr": 0.1},
        "epochs": 10,
    },
    "diabetes": {
        "task": {"name": "regression", "kwargs": {"loss": "huber"}},
        "model": {"name": "mlp", "kwargs": {"hidden": 32}},
        "data": {"name": "csv", "target": "progression", "validation": 0.2},
        "batch": 16,
        "optimizer": {"name": "adam", "lr": 0.02},
        "schedule": "cosine",
        "epochs": 40,
    },
    "Shakespeare": {
        "task": "language_model",
        "model": {"name": "gpt", "kwargs": {"layers": 2, "heads": 2, "width": 64}},
        "data": {"name": "text", "tokens": "characters", "context": 64, "limit": 2000},
        "batch": 6,
        "optimizer": {"name": "adamw", "lr": 0.003},
        "schedule": "cosine",
        "epochs": 1,
    },
}
BOUNDS = {"digits": ("accuracy", 0.01), "diabetes": ("r2", 0.02), "Shakespeare": ("loss", 0.02)}
"""The metric of each task, and how far from float32 the median may be."""
HEADER = ("task", "numbers", "metric", "median", "min..max", "from float32, median", "min..max")
Found = dict[str, dict[str, list[float]]]
"""Task -> variant -> the metric of each seed."""


def spec_of(task: str, variant: str, files: dict[str, Path], seed: int) -> TrainSpec:
    """One run; files: of the tasks that read one."""
    fields = TASKS[task] | VARIANTS[variant] | {"workers": {"count": 1, "virtual": 2}, "seed": seed}
    if task in files:
        fields["data"] = fields["data"] | {"root": str(files[task])}
    return TrainSpec.model_validate(fields)


def measure(spec: TrainSpec) -> dict[str, float]:
    """Train to the end in this process; the metrics on what is held out."""
    from trainers.collectives.local import local_collectives
    from trainers.links.local import LocalWorld
    from trainers.tasks.measures import Measure
    from trainers.training.setup import set_up
    from trainers.training.work import synchronous

    setup, found = set_up(spec, None), dict[str, Measure]()
    with setup.dataset as data:
        (alone,) = local_collectives(LocalWorld(), 1)
        algorithm = spec.algorithm.build(replace(setup.context(setup.begin()[0]), collectives=alone))
        for work in synchronous(data, setup.order, range(setup.order.num_virtual), spec.epochs):
            algorithm.step(work)
        version = algorithm.local_state()
        assert version is not None
        with setup.replica.evaluating(version.params, setup.statistics(version.params, setup.replica.buffers)) as model:
            batches = data.validation_batches if data.num_validation else data.test_batches
            for batch in batches(spec.evaluate.batch):
                for name, measure in setup.task.metrics(model, batch.data).items():
                    found[name] = found[name] + measure if name in found else measure
    return {name: measure.value for name, measure in found.items()}


def markdown(runs: Found, loads: tuple[str, str]) -> str:
    """The whole report."""
    rows, verdicts = [], []
    for task, by_variant in runs.items():
        metric, bound = BOUNDS[task]
        for variant, values in by_variant.items():
            here, base = Spread(tuple(values)), by_variant[PLAIN]
            apart = Spread(tuple(value - exact for value, exact in zip(values, base, strict=True)))
            told = (f"{here.median:.4f}", f"{here.low:.4f}..{here.high:.4f}")
            far = (f"{apart.median:+.4f}", f"{apart.low:+.4f}..{apart.high:+.4f}") if variant != PLAIN else ("", "")
            rows.append((task, variant, metric, *told, *far))
            if variant != PLAIN:
                target = Target(f"{task}, {variant}: {metric} from that of float32", bound, "at most")
                verdicts.append(verdict(target, Spread(tuple(map(abs, apart.values)))))
    assert __doc__ is not None
    seeds = len(next(iter(runs.values()))[PLAIN])
    parts = [
        "# 16 bits and float32 on three tasks",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1], "seeds": str(seeds)}),
        __doc__.partition("\n\n")[2].replace("\n", " ").strip(),
        "Settings: " + "; ".join(f"{name}: `{json.dumps(fields)}`" for name, fields in TASKS.items()) + ".",
        as_table(HEADER, rows),
        "## Against the bounds",
        as_table(VERDICTS, verdicts),
    ]
    return "\n\n".join(parts) + "\n"


def table_of_diabetes(folder: Path) -> Path:
    """The file that `examples/tables/diabetes.yaml` reads."""
    from sklearn.datasets import load_diabetes

    found, path = load_diabetes(scaled=False), folder / "diabetes.csv"
    rows = np.column_stack([found.data, found.target])
    np.savetxt(path, rows, delimiter=",", header=",".join([*found.feature_names, "progression"]), comments="")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 where there is no text."""
    import tempfile

    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each (default 3)")
    parser.add_argument("--text", type=Path, default=SHAKESPEARE, help="the file with the characters")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    if not options.text.is_file():
        parser.error(f"there is no text at {options.text}; name a file with --text")
    console, before = Console(), machine.load()
    runs: Found = {task: {variant: [] for variant in VARIANTS} for task in TASKS}
    with tempfile.TemporaryDirectory() as folder:
        files = {"diabetes": table_of_diabetes(Path(folder)), "Shakespeare": options.text}
        for seed in range(options.seeds):
            for task, by_variant in runs.items():
                for variant, values in by_variant.items():
                    values.append(measure(spec_of(task, variant, files, seed))[BOUNDS[task][0]])
                    print(task, variant, f"seed {seed}", values[-1], flush=True)
    text = markdown(runs, (before, machine.load()))
    console.print(text, markup=False)
    if options.report:
        path = report_path("precision")
        path.write_text(text)
        path.with_suffix(".json").write_text(json.dumps(runs, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
