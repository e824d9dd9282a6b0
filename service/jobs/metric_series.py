"""The metrics of a run over time, downsampled so that a long run is drawn as fast as a short one.

A log is read once, into columns of numbers. The columns of an active run grow with its log; those of an ended run are
kept beside its log as `series.npz`. Downsampling keeps the least and the greatest value of each bucket, so that no
spike is lost.
"""

import json
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel
from pydantic_core import from_json

from service.errors import SeriesNotFound
from trainers import LATENCY_FIGURES, latency_figures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOG = "events.jsonl"
KEPT = "series.npz"
IN_MEMORY = 16
"""How many runs have their columns held in memory: the last used ones."""
LONG_BYTES = 200_000
"""The size of a log from which on it takes longer to read than its columns."""
DOWNSAMPLED = 2000
"""How many downsampled lines are held in memory."""
AXES = ("examples", "epoch", "step", "time")
STEP = (
    "loss", "learning_rate", "examples_per_s", "workers", "dropped", "wait_data_s", "wait_communication_s", "compute_s",
    "sent_bytes", "received_bytes", "gradient_norm", "noise_scale",
)  # fmt: skip
STALENESS = ("staleness", "stalest")
"""Mean and greatest of the updates since the last report."""
EPOCH = ("train_loss",)
TABLES = {"step": STEP + STALENESS + LATENCY_FIGURES, "evaluation": (), "epoch": EPOCH}
"""The figures of each kind of event. Those of an evaluation are whatever the run's task measures."""
NAMES = tuple(name for names in TABLES.values() for name in names)
MEASURED = ("test_", "validation_")
"""Begin the names of a task's metrics."""
USUAL = ("test_loss", "test_accuracy", "test_error_median")
"""Metrics of which every run may be asked; one that has no such metric has an empty line."""


logger = logging.getLogger(__name__)


class Line(BaseModel):
    """One metric over a run."""

    name: str
    x: str
    """Over what: `examples`, `epoch`, `step` (updates), or `time` (seconds since the first event)."""
    points: list[tuple[float, float]]
    """In the order of the run; where a run went back to a checkpoint, x goes back too."""
    total: int
    """How many there are before downsampling."""


class Table(NamedTuple):
    """The figures of one kind of event: (rows, axes and names), NaN where there is none."""

    names: tuple[str, ...]
    rows: "NDArray[np.float64]"

    def pairs(self, name: str, axis: str) -> "NDArray[np.float64]":
        """(values, 2): where each finite value of a figure lies on an axis, and the value."""
        import numpy as np

        if name not in self.names:
            return np.empty((0, 2))
        pairs = self.rows[:, [AXES.index(axis), len(AXES) + self.names.index(name)]]
        return pairs[np.isfinite(pairs[:, 1])]


class Columns:
    """The figures of one log, read as far as it goes; call `read` again for more."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LOG
        self.offset = 0
        self.begin: float | None = None
        self.at = dict.fromkeys(AXES, 0.0)
        self.seen: dict[str, int] = {}
        self.names = {table: list(names) for table, names in TABLES.items()}
        self.rows: dict[str, list[list[float]]] = {table: [] for table in TABLES}

    def read(self) -> None:
        """Take in what was written since the last call."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                if self.begin is None or b'"type":"log"' not in line[:80]:
                    self._add(from_json(line))

    def table(self, name: str) -> Table:
        """All rows of one kind of event."""
        import numpy as np

        width = len(AXES) + len(self.names[name])
        rows = [row + [float("nan")] * (width - len(row)) for row in self.rows[name]]  # from before a name was known
        return Table(tuple(self.names[name]), np.array(rows, dtype=np.float64).reshape(-1, width))

    def _add(self, event: dict[str, Any]) -> None:
        kind, data = event["type"], event["data"]
        self.begin = event["time"] if self.begin is None else self.begin
        self.at["time"] = event["time"] - self.begin
        if kind not in TABLES:
            return
        for axis in ("examples", "epoch", "step"):
            self.at[axis] = data.get(axis, self.at[axis])
        figures = data
        if kind == "step":
            figures = data | self._staleness(data.get("staleness", {})) | latency_figures(data)
        if kind == "evaluation":
            new = [name for name in data if name.startswith(MEASURED) and name not in self.names[kind]]
            self.names[kind] += new
        row = [self.at[axis] for axis in AXES] + [figures.get(name) for name in self.names[kind]]
        self.rows[kind].append([float("nan") if value is None else float(value) for value in row])

    def _staleness(self, counts: dict[str, int]) -> dict[str, float | None]:
        """The counts are those of the whole run so far."""
        if any(count < self.seen.get(key, 0) for key, count in counts.items()):  # it began anew after a resume
            self.seen = {}
        news = {int(key): count - self.seen.get(key, 0) for key, count in counts.items()}
        self.seen = counts
        updates = sum(news.values())
        if not updates:
            return {"staleness": None, "stalest": None}
        mean = sum(key * count for key, count in news.items()) / updates
        return {"staleness": mean, "stalest": max(key for key, count in news.items() if count)}


class SeriesCache:
    """The columns of the runs that were asked for last. Its methods block, and any thread may call them."""

    def __init__(self) -> None:
        self.growing: OrderedDict[Path, Columns] = OrderedDict()
        self.complete: OrderedDict[Path, tuple[int, dict[str, Table]]] = OrderedDict()
        self.downsampled: OrderedDict[tuple[Path, str, str, int], tuple[int, int, NDArray[np.float64]]] = OrderedDict()
        """Size of the log, number of values and what is left of them, by run, figure, axis and number of points."""
        self.lock = threading.Lock()

    def line(self, run_dir: Path, name: str, axis: str, points: int) -> Line:
        """One metric, downsampled to at most about so many points. Raises SeriesNotFound."""
        table = table_of(name)
        try:
            size = os.stat(run_dir / LOG).st_size
        except FileNotFoundError:
            return Line(name=name, x=axis, points=[], total=0)
        key = run_dir, name, axis, points
        with self.lock:
            known = self.downsampled.get(key)
            if known is None or known[0] != size:
                pairs = self._tables(run_dir, size)[table].pairs(name, axis)
                known = self.downsampled[key] = size, len(pairs), pairs[downsample(pairs[:, 1], points)]
            self.downsampled.move_to_end(key)
            while len(self.downsampled) > DOWNSAMPLED:
                self.downsampled.popitem(last=False)
        return Line(name=name, x=axis, points=known[2].tolist(), total=known[1])

    def check(self, run_dir: Path, name: str) -> None:
        """Raise SeriesNotFound where a run has measured metrics, and this one is not among them."""
        if table_of(name) != "evaluation" or name in USUAL or not (run_dir / LOG).exists():
            return
        with self.lock:
            found = self._tables(run_dir, os.stat(run_dir / LOG).st_size)["evaluation"].names
        if found and name not in found:
            raise SeriesNotFound(f"no figure is called {name!r}; there are {', '.join((*NAMES, *found))}")

    def keep(self, run_dir: Path) -> None:
        """Save the columns of an ended run beside its log, if that is long, before anybody asks for them."""
        try:
            size = os.stat(run_dir / LOG).st_size
            if size >= LONG_BYTES and _load(run_dir, size) is None:
                columns = Columns(run_dir)
                columns.read()
                _save(run_dir, size, {table: columns.table(table) for table in TABLES})
        except (OSError, ValueError, KeyError):  # whoever asks for them gets the error
            logger.exception("could not keep the figures of %s", run_dir.name)

    def forget(self, run_dir: Path) -> None:
        """Drop a run that was removed."""
        with self.lock:
            self.growing.pop(run_dir, None)
            self.complete.pop(run_dir, None)
            for key in [key for key in self.downsampled if key[0] == run_dir]:
                del self.downsampled[key]

    def _tables(self, run_dir: Path, size: int) -> dict[str, Table]:
        known = self.complete.get(run_dir)
        if known is None or known[0] != size:
            tables = _load(run_dir, size)
            if tables is None:
                tables = self._read(run_dir)
                _save(run_dir, size, tables)
            known = self.complete[run_dir] = size, tables
        self.complete.move_to_end(run_dir)
        while len(self.complete) > IN_MEMORY:
            self.complete.popitem(last=False)
        return known[1]

    def _read(self, run_dir: Path) -> dict[str, Table]:
        columns = self.growing.setdefault(run_dir, Columns(run_dir))
        columns.read()
        self.growing.move_to_end(run_dir)
        while len(self.growing) > IN_MEMORY // 2:  # lists of Python's numbers take more
            self.growing.popitem(last=False)
        return {table: columns.table(table) for table in TABLES}


def table_of(name: str) -> str:
    """The table that a figure is in; `test_...` and `validation_...` are metrics of a task. Raises SeriesNotFound."""
    if name.startswith(MEASURED):
        return "evaluation"
    table = next((table for table, names in TABLES.items() if name in names), None)
    if table is None:
        there = ", ".join(NAMES)
        raise SeriesNotFound(
            f"no figure is called {name!r}; there are {there}, and {MEASURED[0]}... for a task's metrics"
        )
    return table


def downsample(y: "NDArray[np.float64]", points: int) -> "NDArray[np.intp]":
    """Which values to keep: the least and the greatest of each of points / 2 buckets, and the first and last of all."""
    import numpy as np

    if len(y) <= points:
        return np.arange(len(y))
    width = -(-len(y) // max(1, (points - 2) // 2))
    buckets = np.pad(y, (0, -len(y) % width), mode="edge").reshape(-1, width)
    begins = np.arange(0, len(y), width)
    kept = np.concatenate([[0, len(y) - 1], begins + buckets.argmin(axis=1), begins + buckets.argmax(axis=1)])
    return np.unique(kept)


def _load(run_dir: Path, size: int) -> dict[str, Table] | None:
    """The columns that were saved beside the log, if they are of this log."""
    import numpy as np

    try:
        with np.load(run_dir / KEPT, allow_pickle=False) as found:
            if int(found["size"]) != size:
                return None
            tables = {table: Table(tuple(found[f"{table} names"].tolist()), found[table]) for table in TABLES}
    except (OSError, ValueError, KeyError, EOFError):
        return None
    fits = [rows.ndim == 2 and rows.shape[1] == len(AXES) + len(names) for names, rows in tables.values()]
    return tables if all(fits) else None


def _save(run_dir: Path, size: int, tables: dict[str, Table]) -> None:
    """Save columns beside the log of an ended run. A full disk only costs time later."""
    import numpy as np

    part = run_dir / f".{KEPT}.part"
    columns: dict[str, Any] = {name: table.rows for name, table in tables.items()}
    columns |= {f"{name} names": np.array(table.names, dtype=np.str_) for name, table in tables.items()}
    try:
        if not _has_ended(run_dir / LOG, size):
            return
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, size=np.int64(size), **columns)
        part.rename(run_dir / KEPT)
    except OSError:
        part.unlink(missing_ok=True)


def _has_ended(log: Path, size: int) -> bool:
    with log.open("rb") as file:
        file.seek(max(0, size - 4096))
        last = file.read().splitlines()[-1:]
    try:
        event = json.loads(b"".join(last))  # nothing where nothing is written yet
    except ValueError:
        return False
    return event.get("type") == "state" and event["data"]["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
