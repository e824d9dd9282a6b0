"""`python -m benchmarks.photographs`: JPEG files, trained by Millrace and by DDP on torchvision's ImageFolder and a
DataLoader, taking turns; from the second epoch on."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmarks.measurement import machine, millrace_runs
from benchmarks.measurement.comparison import Comparison, tables, take_turns, verdict, write_report
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import Ours
from benchmarks.measurement.processes import exit_on_sigterm
from benchmarks.measurement.report import as_bullets
from benchmarks.measurement.results import DDP
from benchmarks.measurement.statistics import Target
from benchmarks.measurement.workload import LARGEST_RATE, Workload
from benchmarks.peers import ddp
from benchmarks.peers.ddp import DdpConfig
from trainers.spec import DataSpec

if TYPE_CHECKING:
    from trainers.data.batches import Batch

CLASSES = 10
HELD, STREAMED = "Millrace sync", "Millrace sync, streamed"
LOADERS = (0, 1, 2)
"""DataLoader processes a worker that DDP is tried with."""

PIXELS_A_DRAW = 16
"""Side in pixels of what is drawn at random and then enlarged: JPEGs of noise would be larger than photographs."""


@dataclass(frozen=True)
class Photographs(Workload):
    """Files in folders; a peer reads them as torchvision's users do."""

    loaders: int = 0

    def minibatches(self, rank: int) -> "Iterator[Batch]":
        """ImageFolder, its transforms, a DistributedSampler and a DataLoader, epoch after epoch without end."""
        import itertools

        import numpy as np
        import torch
        from torch.utils.data import DataLoader, DistributedSampler
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        from trainers.data.batches import Batch

        crop = [v2.RandomResizedCrop(self.data.random_resized_crop)] if self.data.random_resized_crop else []
        normalised = v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        changes = v2.Compose(
            [*crop, v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, True), normalised]
        )
        examples = ImageFolder(str(Path(self.data.root) / "train"), changes)
        sampler: DistributedSampler[Any] = DistributedSampler(examples, self.workers, rank, seed=self.seed)
        loader: DataLoader[Any] = DataLoader(
            examples, self.minibatch, sampler=sampler, num_workers=self.loaders, drop_last=True,
            persistent_workers=self.loaders > 0,
        )  # fmt: skip
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            for images, labels in loader:
                yield Batch((images, labels), epoch, np.arange(len(labels)))


def write_jpegs(root: Path, count: int, width: int, height: int) -> None:
    """So many training photographs, and two test ones of each class, in torchvision's layout."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    for half, each in (("train", count // CLASSES), ("val", 2)):
        for label in range(CLASSES):
            folder = root / half / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(each):
                pixels = random.integers(0, 256, (height // PIXELS_A_DRAW, width // PIXELS_A_DRAW, 3), dtype=np.uint8)
                photograph = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
                photograph.save(folder / f"{i}.jpg", quality=90)


def comparisons(folder: Path, seconds: float) -> list[Comparison]:
    """Many small photographs as they are, and larger ones of which crops are trained."""
    found = []
    for count, width, height, crop in ((12_000, 32, 32, 0), (2_000, 400, 300, 64)):
        root = folder / f"{width}x{height}"
        write_jpegs(root, count, width, height)
        data = DataSpec(name="image_folder", root=str(root), random_resized_crop=crop, horizontal_flip=True)
        side, workers, minibatch = crop or width, 2, 32
        work = Photographs(
            data, "lenet5", CLASSES, (3, side, side), minibatch, workers, seconds=seconds, longest_epoch=count,
            warmup_steps=count // (minibatch * workers),  # an epoch
        )  # fmt: skip
        contenders = {f"{DDP}, {n} loaders": partial(_ddp, loaders=n) for n in LOADERS}
        ours = {HELD: {}, **{f"{STREAMED}, {n} loaders": {"loader_processes": n} for n in LOADERS}}
        for name, options in ours.items():
            limit = {"memory_limit_bytes": 0} if options else {}
            contenders[name] = partial(_ours, options={**options, **limit})
        title = f"{count:,} JPEGs of {width}x{height}" + (f", random crops resized to {crop}x{crop}" if crop else "")
        found.append(Comparison(title, work, f"{DDP}, 0 loaders", contenders))
    return found


def verdicts(found: Sequence[Comparison]) -> list[tuple[str, ...]]:
    """The best of ours to the best of the peer's, for a set that is held in memory and for one that is streamed."""
    rows = []
    for comparison in found:
        peers = [name for name in comparison.contenders if name.startswith(DDP)]
        streamed = [name for name in comparison.contenders if name.startswith(STREAMED)]
        base = comparison.best(peers)
        for what, names in (("held in memory", [HELD]), ("streamed", streamed)):
            ours = comparison.best(names)
            ratio = comparison.ratio(ours, base) if ours and base else None
            rows.append(verdict(Target(f"{comparison.title}: {what}, to DDP at its best", 1.0), ratio))
    return rows


def markdown(found: Sequence[Comparison], load: dict[str, str]) -> str:
    """The whole report."""
    parts = ["# Photographs in files, on one machine", as_bullets({**machine.describe(), **load})]
    parts.append(
        "`lenet5`, minibatch 32 a worker, two workers of one thread, momentum SGD, half of the photographs mirrored. "
        "The first epoch is not measured. Medians over the rounds, in which the contenders take turns; ratios are "
        "taken within a round (paired). Loaders are DataLoader processes a worker, on top of the two workers."
    )
    return "\n\n".join([*parts, *tables(found, verdicts(found))]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photographs", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often everyone is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of one measurement (default 8)")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    exit_on_sigterm()
    console, before = Console(), machine.load()
    with tempfile.TemporaryDirectory(prefix="millrace-jpegs-") as folder:
        found = comparisons(Path(folder), options.seconds)
        take_turns(found, options.rounds, console)
    text = markdown(found, {"load average before": before, "after": machine.load()})
    console.print(text, markup=False)
    if options.report:
        write_report("photographs", text, found)
    return 1 if any(comparison.failures for comparison in found) else 0


def _ddp(work: Workload, loaders: int) -> Measurement:
    assert isinstance(work, Photographs)
    return ddp.measure(replace(work, loaders=loaders), DdpConfig())


def _ours(work: Workload, options: dict[str, int]) -> Measurement:
    data = work.data.model_copy(update=options)
    return millrace_runs.measure(replace(work, data=data), Ours("sync"), LARGEST_RATE)


if __name__ == "__main__":
    sys.exit(main())
