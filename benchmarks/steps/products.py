"""`python -m benchmarks.steps.products`: whether the library that is chosen for a layer is the faster one.

The fully connected layers of four models, one thread. The choice is measured anew, as a run does; then each layer's
forward and backward pass is timed as a replica makes it: through torch's own library, through oneDNN, and as chosen.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torchvision import models

from benchmarks.measurement import machine
from benchmarks.measurement.comparison import VERDICTS, verdict
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target
from benchmarks.peers.products import linear_shapes
from trainers.models.networks.gpt import Gpt
from trainers.models.networks.small import ConvNet
from trainers.models.products.choice import PASSES, product_name
from trainers.models.products.measure import Shape, choose, layer_step
from trainers.models.products.multiply import Products, through
from trainers.models.products.table import processor_name

IMAGES, WINDOWS, TOKENS = 32, 8, 128
"""A minibatch, of images and of windows of text."""
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convnet": (lambda: ConvNet(10, (1, 28, 28)), lambda: torch.zeros(IMAGES, 1, 28, 28)),
    "AlexNet": (models.alexnet, lambda: torch.zeros(IMAGES, 3, 224, 224)),
    "VGG-16": (models.vgg16, lambda: torch.zeros(IMAGES, 3, 224, 224)),
    "GPT, 128 wide": (lambda: Gpt(65, TOKENS), lambda: torch.zeros(WINDOWS, TOKENS, dtype=torch.int64)),
    "GPT, 124 M": (
        lambda: Gpt(50_257, 1024, layers=1, heads=12, width=768),  # whose twelve blocks are alike
        lambda: torch.zeros(WINDOWS, TOKENS, dtype=torch.int64),
    ),
}
OURS, TORCH, ONEDNN = "as chosen", "torch's own library", "oneDNN"
TARGET = Target("time of a layer's step, as chosen to the faster library, at worst", 1.05, "at most")
LEAST_S = 0.02
"""For so long each is timed in a round."""
Times = dict[str, list[float]]
"""Contender -> CPU seconds of a step, round by round."""


def shapes_of(name: str) -> set[Shape]:
    """Of the layers of a model that are large enough to be measured. Nothing is computed."""
    build, inputs = MODELS[name]
    with torch.device("meta"):
        return linear_shapes(build(), inputs())


def measure(shape: Shape, ours: Products, rounds: int) -> Times:
    """A layer through each, in turns."""
    rows, *layer = shape
    everyone = {OURS: ours, **{n: through(n == ONEDNN, [(layer[0], layer[1])]) for n in (TORCH, ONEDNN)}}
    steps = {name: layer_step(products, rows, layer[0], layer[1]) for name, products in everyone.items()}
    times: Times = {name: [] for name in steps}
    for turn in range(-1, rounds):
        names = list(steps)
        for name in names[turn % 3 :] + names[: turn % 3]:
            seconds = cpu_seconds(steps[name])
            if turn >= 0:
                times[name].append(seconds)
    return times


def cpu_seconds(step: Callable[[], object]) -> float:
    """Of the quickest of as many as fill LEAST_S: nothing that others compute counts but what they do to the caches."""
    quickest, began = float("inf"), time.perf_counter()
    while quickest == float("inf") or time.perf_counter() - began < LEAST_S:
        begun = time.thread_time()
        step()
        quickest = min(quickest, time.thread_time() - begun)
    return quickest


def excess(times: Times) -> Spread:
    """The time as chosen to that of the faster library: which one that is, the medians say."""
    faster = min((TORCH, ONEDNN), key=lambda name: Spread(tuple(times[name])).median)
    return Spread(tuple(a / b for a, b in zip(times[OURS], times[faster], strict=True)))


def report(found: dict[str, dict[Shape, Times]], ours: Products, before: str) -> str:
    """The whole report, Markdown."""
    rows, ratios = [], []
    for model, layers in found.items():
        for shape, times in sorted(layers.items()):
            spread = excess(times)
            ratios.append(spread)
            through_onednn = [p for i, p in enumerate(PASSES) if product_name(i, *shape[1:]) in ours.onednn]
            medians = [f"{1000 * Spread(tuple(times[name])).median:.3f}" for name in (TORCH, ONEDNN, OURS)]
            label = f"{shape[0]} x {shape[1]} x {shape[2]}"
            rows.append((model, label, *medians, f"{spread.median:.3f}", ", ".join(through_onednn) or "none"))
    worst = max(ratios, key=lambda spread: spread.median)
    header = ("model", "rows x inputs x outputs", f"{TORCH}, ms", "oneDNN, ms", "as chosen, ms", "to the faster")
    parts = [
        "# The products of fully connected layers",
        as_bullets(
            {**machine.describe(), "measured on": ours.choice.processor, "load average before": before}
            | {"after": machine.load()}
        ),
        machine.disturbed(before),
        "A layer's forward and backward pass, one thread: medians over the rounds of the CPU time of the quickest step "
        "in each; ratios are taken within a round (paired). The choice was measured anew before, as a run does.",
        as_table((*header, "through oneDNN"), rows),
        "## Against the contract",
        as_table(VERDICTS, [verdict(TARGET, worst)]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 once everything was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps.products", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="how often each is timed (default 9)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    console, before = Console(), machine.load()
    shapes = {name: shapes_of(name) for name in MODELS}
    with tempfile.TemporaryDirectory() as folder:
        ours = Products(
            choose({shape for of_model in shapes.values() for shape in of_model}, Path(folder, "table.json"))
        )
    assert ours.choice.processor == processor_name()
    found: dict[str, dict[Shape, Times]] = {name: {} for name in shapes}
    each = [(name, shape) for name, of_model in shapes.items() for shape in of_model]
    for name, shape in track(each, console=console):
        found[name][shape] = measure(shape, ours, options.rounds)
    text = report(found, ours, before)
    console.print(text, markup=False, soft_wrap=True)
    if options.report:
        report_path("products").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
