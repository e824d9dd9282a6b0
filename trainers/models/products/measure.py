"""Measures once on a machine which library makes the products of a layer faster, and keeps it in a table.

The table lies in the user's cache folder, by processor, version of torch, threads, layer and rows: so two runs on one
machine make the same choice, and have the same bits.
"""

import fcntl
import itertools
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trainers.models.products.choice import PASSES, Choice, product_name
from trainers.models.products.multiply import COPIED_WEIGHTS, Products, through
from trainers.models.products.sink import Sink, into_sink

ROUNDS, LEAST_S = 5, 0.008
"""Each library is timed in so many rounds, in turns, and for at least so long a round."""
AHEAD = 0.95
"""oneDNN is taken where its time is below this part of the other's: of two that are alike, torch's own."""
LAYER_AHEAD = 0.99
"""And a small layer is taken from torch where its whole step is below this part of torch's."""

Table = dict[str, dict[str, bool]]
"""Processor -> product and rows -> whether oneDNN makes it."""


def usual_table() -> Path:
    """Where the table of this user lies."""
    return Path.home() / ".cache" / "millrace" / "products.json"


def processor_name() -> str:
    """The processor, the vector instructions that torch uses of it, the version of torch, and the threads."""
    name = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo") as file:
        name = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), name)
    threads = torch.get_num_threads()
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, torch {torch.__version__}, {threads} thread{'s' if threads > 1 else ''}"


def choose(shapes: Collection[tuple[int, int, int]], table: Path | None = None) -> Choice:
    """The choice for layers of (rows, inputs, outputs): from the table, and measured where it has none.

    Where no table can be written the choice is measured anew each time.
    """
    processor = processor_name()
    rows_of = {shape[1:]: shape[0] for shape in sorted(shapes)}  # the most, of a layer that is used in several ways
    if not rows_of:
        return Choice()
    with _opened(table or usual_table()) as (known, keep):
        mine, before = known.setdefault(processor, {}), len(known[processor])
        found: dict[str, bool] = {}
        for layer, rows in rows_of.items():
            names = [product_name(which, *layer) for which in range(len(PASSES))]
            if any(f"{name}, {rows} rows" not in mine for name in names):
                through_onednn = passes_through_onednn(rows, *layer)
                mine |= {f"{name}, {rows} rows": is_so for name, is_so in zip(names, through_onednn, strict=True)}
            found |= {name: mine[f"{name}, {rows} rows"] for name in names}
        if len(mine) > before:
            keep(known)
        return Choice(processor, tuple(sorted(found)), tuple(sorted(name for name in found if found[name])))


def passes_through_onednn(rows: int, inputs: int, outputs: int) -> tuple[bool, ...]:
    """Measure a layer: which of its three products oneDNN is to make.

    A small layer that torch trains by itself has no functions in Python, and its step is the measure of whether what
    oneDNN saves is worth them.
    """
    faster = tuple(is_onednn_faster(which, rows, inputs, outputs) for which in range(len(PASSES)))
    is_left_to_torch = inputs * outputs < COPIED_WEIGHTS
    if is_left_to_torch and any(faster) and not _is_step_faster(faster, rows, inputs, outputs):
        return (False,) * len(PASSES)
    return faster


def is_onednn_faster(which: int, rows: int, inputs: int, outputs: int) -> bool:
    """Measure one product. which: index in PASSES."""
    torchs, onednns = (_product(which, rows, inputs, outputs, onednn) for onednn in (False, True))
    return _quicker(torchs, onednns, AHEAD)


def _is_step_faster(onednn: Sequence[bool], rows: int, inputs: int, outputs: int) -> bool:
    """Whether a layer's forward and backward pass are faster with these products of oneDNN than torch's own are."""
    names = tuple(product_name(which, inputs, outputs) for which in range(len(PASSES)))
    mixed = Products(Choice(measured=names, onednn=tuple(itertools.compress(names, onednn))))
    torchs = through(False, [(inputs, outputs)])
    return _quicker(_step(torchs, rows, inputs, outputs), _step(mixed, rows, inputs, outputs), LAYER_AHEAD)


def _quicker(torchs: Callable[[], object], ours: Callable[[], object], ahead: float) -> bool:
    """Whether `ours` takes less than this part of the other's time."""
    times: dict[Callable[[], object], list[float]] = {torchs: [], ours: []}
    for _ in range(ROUNDS):
        for call, found in times.items():
            found.append(_seconds(call))
    return min(times[ours]) < ahead * min(times[torchs])


def _step(products: Products, rows: int, inputs: int, outputs: int) -> Callable[[], object]:
    """A layer's forward and backward pass as a replica makes them."""
    layer, x, dy = nn.Linear(inputs, outputs, bias=False), torch.ones(rows, inputs), torch.ones(rows, outputs)
    x.requires_grad_()
    into = torch.empty(outputs, inputs)
    sink = Sink({id(layer.weight): into}, set())
    forward = into_sink(_Alone(sink, products))

    def step() -> None:
        sink.written.clear()
        forward(layer, x).backward(dy)  # type: ignore[no-untyped-call]
        if layer.weight.grad is not None:
            into.copy_(layer.weight.grad)
        layer.weight.grad = x.grad = None

    return step


@dataclass(frozen=True)
class _Alone:
    """Who trains a layer that has no model around it."""

    sink: Sink
    products: Products


def _product(which: int, rows: int, inputs: int, outputs: int, onednn: bool) -> Callable[[], object]:
    products: Products = through(onednn, [(inputs, outputs)])
    x, dy, weight = torch.ones(rows, inputs), torch.ones(rows, outputs), torch.full((outputs, inputs), 0.5)
    into: Tensor = torch.empty(outputs, inputs) if PASSES[which] == "weight gradient" else weight
    calls: tuple[Callable[[], object], ...] = (
        lambda: products.outputs(x, weight, None),
        lambda: products.input_gradient(dy, weight),
        lambda: products.weight_gradient(dy, x, into),
    )
    return calls[which]


def _seconds(product: Callable[[], object]) -> float:
    """Of the quickest call among as many as fill LEAST_S, after one that is not counted: where others compute on the
    machine, most calls are interrupted."""
    product()
    quickest, began = float("inf"), time.perf_counter()
    while (begun := time.perf_counter()) - began < LEAST_S:
        product()
        quickest = min(quickest, time.perf_counter() - begun)
    return quickest


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Table, Callable[[Table], None]]]:
    """The table, and what writes it; one process of this user at a time measures."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115  # closed below
    except OSError:
        yield {}, lambda _: None
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _read(path), lambda table: _write(path, table)


def _read(path: Path) -> Table:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and all(isinstance(row, dict) for row in found.values()):
            return found
    return {}


def _write(path: Path, table: Table) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a full disk; it is measured again the next time
        part.write_text(json.dumps(table, indent=1, sort_keys=True))
        part.replace(path)
