"""Measures once on a machine which library makes the products of a layer faster, and keeps it in a table.

The table lies in the user's cache folder, by processor, version of torch and threads: so two runs on one machine make
the same choice, and have the same bits.
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch import Tensor

from trainers.models.products.choice import PASSES, Choice, product_name
from trainers.models.products.multiply import Products, through

ROUNDS, LEAST_S = 3, 0.005
"""Each library is timed in so many rounds, in turns, and for at least so long a round."""
AHEAD = 0.95
"""oneDNN is taken where its time is below this part of the other's: of two that are alike, torch's own."""
LEAST_SAVING_S = 0.0002
"""And where it saves at least so much: a layer that torch trains by itself has no functions in Python."""

Table = dict[str, dict[str, bool]]
"""Processor -> product -> whether oneDNN is faster."""


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
    wanted = {product_name(which, *shape[1:]): (which, *shape) for shape in sorted(shapes) for which in range(3)}
    if not wanted:
        return Choice()
    with _opened(table or usual_table()) as (known, keep):
        mine = known.setdefault(processor, {})
        missing = [name for name in wanted if name not in mine]
        for name in missing:
            mine[name] = is_onednn_faster(*wanted[name])
        if missing:
            keep(known)
        return Choice(processor, tuple(sorted(wanted)), tuple(sorted(name for name in wanted if mine[name])))


def is_onednn_faster(which: int, rows: int, inputs: int, outputs: int) -> bool:
    """Measure one product. which: index in PASSES."""
    theirs, ours = (_product(which, rows, inputs, outputs, onednn) for onednn in (False, True))
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for onednn, product in ((False, theirs), (True, ours)):
            times[onednn].append(_seconds(product))
    onednn_s, own_s = min(times[True]), min(times[False])
    return onednn_s < AHEAD * own_s and own_s - onednn_s >= LEAST_SAVING_S


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
