"""The forward passes that paper 2 timed (section 3.2), on the available devices.

A convolution of 96 filters of 11 x 11 with stride 4 over grey images of 224 x 224, as a function of the batch size; and
a fully connected layer, the product of an n x n matrix and a vector, as a function of n. (The 54 positions of a filter
in the paper are 54 x 54.)
"""

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from trainers.cost.figures import FittedLine, LayerName, PassTiming, TimingCurve, TimingPlan, Timings, ratios, work
from trainers.cost.memory import free_bytes
from trainers.cost.profiled import processor
from trainers.errors import SpecRejected

FILTERS, KERNEL, STRIDE, SIDE = 96, 11, 4, 224
POSITIONS = (SIDE - KERNEL) // STRIDE + 1
WARM_UPS = 2
FLOAT_BYTES = 4
COPIES = 2
"""How many copies of its inputs and outputs a library may hold: in our memory order and in its own."""

Pass = Callable[[], Tensor]


def time_layers(plan: TimingPlan, on_pass: Callable[[str, float], None] = lambda name, done: None) -> Timings:
    """Time all of a plan, `plan.repeats` passes a size after a few unmeasured ones; on one GPU of each kind.

    Args:
        plan: What is timed, and where.
        on_pass: Called after each size with its name and the fraction of all sizes that are done.

    Raises:
        SpecRejected: The device is not available, or a size does not fit in its memory.
    """
    devices = _devices(plan)
    for device in devices:
        check_memory(plan, device)
    sizes: dict[LayerName, list[int]] = {
        "convolution": sorted(set(plan.batches)),
        "fully_connected": sorted(set(plan.sizes)),
    }
    total, done = len(devices) * sum(map(len, sizes.values())), itertools.count(1)
    with _as_in_a_run(plan.threads):
        found = [
            _curve(layer, device, sizes[layer], plan.repeats, lambda name: on_pass(name, next(done) / total))
            for layer in sizes
            for device in devices
        ]
        threads = torch.get_num_threads()
    return Timings(plan=plan, threads=threads, curves=tuple(found), ratios=ratios(tuple(found)))


def num_bytes(layer: LayerName, size: int) -> int:
    """Bytes of the device's memory that one pass needs at most."""
    if layer == "convolution":
        return size * (SIDE**2 + FILTERS * POSITIONS**2) * FLOAT_BYTES * COPIES
    return (size**2 + 2 * size) * FLOAT_BYTES * COPIES


def check_memory(plan: TimingPlan, device: torch.device) -> None:
    """Refuse sizes that do not fit in the device's memory, before anything is timed.

    Raises:
        SpecRejected: Names the largest size that fits.
    """
    free = free_bytes(device)
    wanted: dict[LayerName, tuple[str, tuple[int, ...]]] = {
        "convolution": ("--batches", plan.batches),
        "fully_connected": ("--sizes", plan.sizes),
    }
    for layer, (option, sizes) in wanted.items():
        needs = num_bytes(layer, max(sizes))
        if needs > free:
            fraction = free / needs
            most = int(max(sizes) * (fraction if layer == "convolution" else fraction**0.5))
            problem = f"{max(sizes)} takes {needs / 1e9:.1f} GB, and {device} has {free / 1e9:.1f} GB free"
            raise SpecRejected(f"{option}: {problem}; use sizes up to {most}")


def fit(points: list[tuple[float, float]]) -> FittedLine | None:
    """The straight line through (x, seconds) by least squares; None for fewer than two different x."""
    if len({x for x, _ in points}) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    slope, intercept = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(ys)
    residual = sum((y - slope * x - intercept) ** 2 for x, y in points)
    spread = sum((y - mean) ** 2 for y in ys)
    return FittedLine(slope_s=slope, intercept_s=intercept, r2=1 - residual / spread if spread else 1.0)


def _devices(plan: TimingPlan) -> list[torch.device]:
    """The CPU, and the first GPU of each kind."""
    gpus = {torch.cuda.get_device_name(index): index for index in reversed(range(torch.cuda.device_count()))}
    if plan.device == "cuda" and not gpus:
        raise SpecRejected("device: there is no GPU on this machine; use cpu")
    cpus = [] if plan.device == "cuda" else [torch.device("cpu")]
    cuda = [] if plan.device == "cpu" else [torch.device("cuda", index) for index in sorted(gpus.values())]
    return cpus + cuda


def _curve(
    layer: LayerName, device: torch.device, sizes: list[int], repeats: int, on_pass: Callable[[str], None]
) -> TimingCurve:
    timings = []
    for size in sizes:
        try:
            timings.append(_timing(size, device, make_pass(layer, size, device), repeats))
        except torch.OutOfMemoryError as error:
            raise SpecRejected(f"{layer} of size {size}: {device} is out of memory; use smaller sizes") from error
        on_pass(f"{layer.replace('_', ' ')} {size} on {device}")
    line = fit([(work(layer, timing.size), timing.mean_s) for timing in timings])
    return TimingCurve(layer=layer, device=str(device), hardware=hardware_of(device), timings=tuple(timings), line=line)


def make_pass(layer: LayerName, size: int, device: torch.device) -> Pass:
    """A function that computes one forward pass of a layer with random weights on a device."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(0)
        module: nn.Module
        if layer == "convolution":
            module = nn.Conv2d(1, FILTERS, KERNEL, STRIDE, device=device)
            x = torch.randn(size, 1, SIDE, SIDE, device=device)  # (B, C, H, W)
        else:
            module = nn.Linear(size, size, bias=False, device=device)
            x = torch.randn(1, size, device=device)
    return lambda: module(x)


@torch.inference_mode()
def _timing(size: int, device: torch.device, forward: Pass, repeats: int) -> PassTiming:
    """Time a pass. A GPU is still computing when the call returns, so the clock stops when it has finished."""
    seconds = []
    for count in range(WARM_UPS + repeats):
        wait_for(device)
        begin = time.perf_counter()
        forward()
        wait_for(device)
        if count >= WARM_UPS:
            seconds.append(time.perf_counter() - begin)
    return PassTiming(size=size, mean_s=statistics.fmean(seconds), spread_s=statistics.pstdev(seconds))


def wait_for(device: torch.device) -> None:
    """Until a GPU has computed all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextlib.contextmanager
def _as_in_a_run(threads: int | None) -> Iterator[None]:
    """Threads and kernels as in a worker: deterministic kernels, and no TF32 in place of float32."""
    before, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    torch.set_num_threads(threads or before)
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.matmul.allow_tf32 = tf32


def hardware_of(device: torch.device) -> str:
    """The manufacturer's name of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor()
