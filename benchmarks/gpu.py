"""`python -m benchmarks.gpu`: one worker on a GPU against bare PyTorch of the same model, taking turns."""

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch

from benchmarks.measurement import machine
from benchmarks.measurement.gpu_runs import OurWorker
from benchmarks.measurement.gpu_work import IMAGES28, IMAGES224, TOKENS, GpuWork, timed
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.statistics import Spread, Target, paired
from benchmarks.peers.gpu_loop import BareLoop, FreeLoop

WITHIN, ACCUMULATED = 0.99, 0.97
WARM_UP_STEPS = 5
RESNET, LANGUAGE = ("resnet50", IMAGES224), ("gpt", TOKENS)
WORKS = (
    (GpuWork("ResNet-50, batch 256, bfloat16", *RESNET, 256, 1, 30, "bfloat16"), WITHIN),
    (GpuWork("ResNet-50, 4 x 64, bfloat16", *RESNET, 64, 4, 30, "bfloat16"), ACCUMULATED),
    (GpuWork("GPT of 124 M, batch 32, bfloat16, compiled", *LANGUAGE, 32, 1, 20, "bfloat16", True), WITHIN),
    (GpuWork("GPT of 124 M, 4 x 32, bfloat16, compiled", *LANGUAGE, 32, 4, 6, "bfloat16", True), ACCUMULATED),
    (GpuWork("ResNet-50, batch 256, TF32", *RESNET, 256, 1, 24, "tf32"), WITHIN),
    (GpuWork("ResNet-50, 4 x 64, TF32", *RESNET, 64, 4, 24, "tf32"), ACCUMULATED),
    (GpuWork("ResNet-50, batch 256, float32", *RESNET, 256, 1, 12), WITHIN),
    (GpuWork("ResNet-50, 4 x 64, float32", *RESNET, 64, 4, 12), ACCUMULATED),
    (GpuWork("convnet, batch 256, float32", "convnet", IMAGES28, 256, 1, 400), WITHIN),
    (GpuWork("convnet, batch 2048, float32", "convnet", IMAGES28, 2048, 1, 200), WITHIN),
    (GpuWork("convnet, 4 x 512, float32", "convnet", IMAGES28, 512, 4, 200), ACCUMULATED),
)


@dataclass
class Found:
    """What both sides reached, round by round."""

    work: GpuWork
    bound: float
    ours: list[float] = field(default_factory=list)
    """Examples/s."""
    bare: list[float] = field(default_factory=list)
    free: list[float] = field(default_factory=list)
    """Of PyTorch with kernels whose bits are not fixed; empty where that was not measured."""

    def measure(self, rounds: int, frees: bool) -> None:
        """All in one process on one GPU, in turns, in the other order in every other round."""
        ours, bare = OurWorker(self.work), BareLoop(self.work)
        sides = [(ours.steps, self.ours), (bare.steps, self.bare)]
        if frees:
            sides.append((FreeLoop(self.work).steps, self.free))
        for steps, _ in sides:
            steps(WARM_UP_STEPS)
        for turn in range(rounds):
            for steps, rates in sides[:: -1 if turn % 2 else 1]:
                rates.append(timed(self.work, steps))
        ours.close()

    @property
    def rows(self) -> tuple[str, ...]:
        ours, bare, ratio = Spread(tuple(self.ours)), Spread(tuple(self.bare)), paired(self.ours, self.bare)
        verdict = Target(self.work.title, self.bound).verdict(ratio)
        found = f"{ratio.median:.3f} ({ratio.low:.3f}..{ratio.high:.3f})"
        step_ms = 1000 * self.work.examples / ours.median
        free = f"{Spread(tuple(self.free)).median:,.0f}" if self.free else ""
        rates = (f"{ours.median:,.0f}", f"{bare.median:,.0f}", free, f"{step_ms:.2f}")
        return (self.work.title, *rates, found, f"at least {self.bound:g}", verdict)


HEADER = (
    "work", "Millrace, examples/s", "PyTorch, examples/s", "PyTorch, free kernels", "ms a step", "ratio, paired",
    "bound", "verdict",
)  # fmt: skip


def describe() -> dict[str, str]:
    """The machine's, with its GPU."""
    properties = torch.cuda.get_device_properties(0)
    gpu = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, {properties.multi_processor_count} processors"
    versions = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    return {"GPU": f"{gpu}, {versions}"} | machine.describe()


def markdown(found: Sequence[Found], rounds: int) -> str:
    """The whole report."""
    text = (
        f"Medians of {rounds} rounds, in which both sides take turns in one process; ratios are taken within a round. "
        "Both sides have the same kernels (deterministic, chosen without measuring), weights in `channels_last`, "
        "images as uint8 or tokens in the memory of the host, and the same optimiser; PyTorch's side has its fused "
        "form, pinned memory, a stream of its own for copies, and where it is compiled its loss with it. Millrace's is "
        "a worker's own loop, without Ray. \"Free kernels\" is PyTorch's side with those that it finds fastest, whose "
        "bits may differ from run to run; the ratio is not against it."
    )
    parts = ["# One GPU against bare PyTorch", as_bullets(describe()), text, as_table(HEADER, [f.rows for f in found])]
    return "\n\n".join(parts) + "\n"


def write(found: Sequence[Found], rounds: int) -> None:
    """The dated report, under the name of the GPU."""
    path = report_path(f"gpu-{torch.cuda.get_device_name(0).split()[1].lower()}")
    path.write_text(markdown(found, rounds))
    path.with_suffix(".json").write_text(json.dumps([asdict(each) for each in found], indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 where there is no GPU."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often both sides are measured (default 7)")
    parser.add_argument("--only", help="only works whose title contains this")
    parser.add_argument("--free", action="store_true", help="measure PyTorch without deterministic kernels, too")
    parser.add_argument("--report", action="store_true", help="write benchmarks/results/<today>-gpu-<name>")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("there is no GPU")
        return 1
    found = list[Found]()
    for work, bound in WORKS:
        if (options.only or "") not in work.title:
            continue
        found.append(each := Found(work, bound))
        each.measure(options.rounds, options.free)
        gc.collect()
        torch.cuda.empty_cache()
        print(" | ".join(each.rows), flush=True)
        if options.report:  # so far: a GPU may be lent for a short time
            write(found, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
