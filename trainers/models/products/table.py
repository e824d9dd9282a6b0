"""What was measured on this user's machines: a table by processor, libraries, threads, precision, layer and rows.

It lies in the user's cache folder, so that two runs on one machine make the same choice, and have the same bits.
"""

import fcntl
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

PRECISION = "float32"
"""Of the products that Millrace makes itself; of others torch chooses the library."""


@dataclass(frozen=True)
class Measured:
    """One product of a layer, for so many rows."""

    onednn: bool
    """Whether oneDNN makes it: that is faster, and of a small layer the whole step is."""
    torch_ms: float
    """The quickest call, through torch's own library."""
    onednn_ms: float


Rows = dict[str, Measured]
"""By product and rows, as `row_name` names them."""
Table = dict[str, dict[str, Any]]
"""By the name of a processor, as it lies in the file."""


def usual_table() -> Path:
    """Where the table of this user lies."""
    return Path.home() / ".cache" / "millrace" / "products.json"


def row_name(product: str, rows: int) -> str:
    """A row of the table. product: as `product_name` names it."""
    return f"{product}, {rows} rows"


def processor_name() -> str:
    """All that a measurement depends on: the processor with family, model and stepping, as many bear one name; the
    vector instructions that torch uses of it; torch and its two libraries with their versions; threads, precision."""
    about = torch.__config__.show()
    libraries = {
        "MKL": re.search(r"Math Kernel Library Version (\S+?)-", about),
        "oneDNN": re.search(r"MKL-DNN v(\S+)", about),
    }
    versions = [f"{name} {found[1]}" for name, found in libraries.items() if found]
    threads = torch.get_num_threads()
    parts = [_processor(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}", *versions]
    return ", ".join([*parts, f"{threads} thread{'s' if threads > 1 else ''}", PRECISION])


def _processor() -> str:
    found: dict[str, str] = {}
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = (part.strip() for part in line.partition(":"))
            if not name:  # the next core
                break
            found[name] = value
    if "model name" not in found:
        return platform.processor() or platform.machine()
    which = [f"{name} {found[key]}" for name, key in _WHICH.items() if key in found]
    return f"{found['model name']} ({', '.join(which)})" if which else found["model name"]


_WHICH = {"family": "cpu family", "model": "model", "stepping": "stepping"}


@contextmanager
def rows_of(processor: str, path: Path) -> Iterator[tuple[Rows, Callable[[Rows], None]]]:
    """What was measured on such a processor, and what keeps more of it; one process of this user at a time measures.

    Where no table can be written nothing is known, and nothing kept.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = open(path.with_suffix(".lock"), "w")  # noqa: SIM115  # closed below
    except OSError:
        yield {}, lambda _: None
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        table = _read(path)

        def keep(rows: Rows) -> None:
            _write(path, table | {processor: {name: asdict(row) for name, row in rows.items()}})

        yield _whole(table.get(processor, {})), keep


def _read(path: Path) -> Table:
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        if isinstance(found, dict) and all(isinstance(rows, dict) for rows in found.values()):
            return found
    return {}


def _whole(rows: dict[str, Any]) -> Rows:
    """Those that are what they should be; the others are measured again."""
    found: Rows = {}
    for name, row in rows.items():
        with suppress(TypeError):
            found[name] = Measured(**row)
    return found


def _write(path: Path, table: Table) -> None:
    part = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # a full disk; it is measured again the next time
        part.write_text(json.dumps(table, indent=1, sort_keys=True))
        part.replace(path)
