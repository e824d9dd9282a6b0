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
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic_core import from_json

from service.errors import SeriesNotFound

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
    "sent_bytes", "received_bytes",
)  # fmt: skip
STALENESS = ("staleness", "stalest")
"""Mean and greatest of the updates since the last report."""
EVALUATION = (
    "test_loss", "test_accuracy", "test_error_median", "test_top5_accuracy", "test_mae", "test_r2", "test_perplexity",
    "test_bits_per_byte", "test_bits_per_character",
)  # fmt: skip
EPOCH = ("train_loss",)
TABLES = {"step": STEP + STALENESS, "evaluation": EVALUATION, "epoch": EPOCH}
NAMES = tuple(name for names in TABLES.values() for name in names)


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


class Columns:
    """The figures of one log, read as far as it goes; call `read` again for more."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / LOG
        self.offset = 0
        self.begin: float | None = None
        self.at = dict.fromkeys(AXES, 0.0)
        self.seen: dict[str, int] = {}
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

    def table(self, name: str) -> "NDArray[np.float64]":
        """All rows of one kind: the axes, then its figures; NaN where there is none."""
        import numpy as np

        width = len(AXES) + len(TABLES[name])
        return np.array(self.rows[name], dtype=np.float64).reshape(-1, width)

    def _add(self, event: dict[str, Any]) -> None:
        kind, data = event["type"], event["data"]
        self.begin = event["time"] if self.begin is None else self.begin
        self.at["time"] = event["time"] - self.begin
        if kind not in TABLES:
            return
        for axis in ("examples", "epoch", "step"):
            self.at[axis] = data.get(axis, self.at[axis])
        figures = data | self._staleness(data.get("staleness", {})) if kind == "step" else data
        row = [self.at[axis] for axis in AXES] + [figures.get(name) for name in TABLES[kind]]
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
        self.complete: OrderedDict[Path, tuple[int, dict[str, NDArray[np.float64]]]] = OrderedDict()
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
                known = self.downsampled[key] = size, *_downsampled(self._tables(run_dir, size)[table], table, *key[1:])
            self.downsampled.move_to_end(key)
            while len(self.downsampled) > DOWNSAMPLED:
                self.downsampled.popitem(last=False)
        return Line(name=name, x=axis, points=known[2].tolist(), total=known[1])

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

    def _tables(self, run_dir: Path, size: int) -> "dict[str, NDArray[np.float64]]":
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

    def _read(self, run_dir: Path) -> "dict[str, NDArray[np.float64]]":
        columns = self.growing.setdefault(run_dir, Columns(run_dir))
        columns.read()
        self.growing.move_to_end(run_dir)
        while len(self.growing) > IN_MEMORY // 2:  # lists of Python's numbers take more
            self.growing.popitem(last=False)
        return {table: columns.table(table) for table in TABLES}


def table_of(name: str) -> str:
    """The table that a metric is in. Raises SeriesNotFound."""
    table = next((table for table, names in TABLES.items() if name in names), None)
    if table is None:
        raise SeriesNotFound(f"no figure is called {name!r}; there are {', '.join(NAMES)}")
    return table


def _downsampled(
    rows: "NDArray[np.float64]", table: str, name: str, axis: str, points: int
) -> "tuple[int, NDArray[np.float64]]":
    """The number of values of a metric, and the downsampled ones as pairs [x, y]."""
    import numpy as np

    pairs = rows[:, [AXES.index(axis), len(AXES) + TABLES[table].index(name)]]
    pairs = pairs[np.isfinite(pairs[:, 1])]
    return len(pairs), pairs[downsample(pairs[:, 1], points)]


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


def _load(run_dir: Path, size: int) -> "dict[str, NDArray[np.float64]] | None":
    """The columns that were saved beside the log, if they are of this log."""
    import numpy as np

    try:
        with np.load(run_dir / KEPT, allow_pickle=False) as found:
            if int(found["size"]) != size:
                return None
            tables = {table: found[table] for table in TABLES}
    except (OSError, ValueError, KeyError, EOFError):
        return None
    fits = all(rows.ndim == 2 and rows.shape[1] == len(AXES) + len(TABLES[name]) for name, rows in tables.items())
    return tables if fits else None


def _save(run_dir: Path, size: int, tables: "dict[str, NDArray[np.float64]]") -> None:
    """Save columns beside the log of an ended run. A full disk only costs time later."""
    import numpy as np

    part = run_dir / f".{KEPT}.part"
    try:
        if not _has_ended(run_dir / LOG, size):
            return
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, size=np.int64(size), **tables)
        part.rename(run_dir / KEPT)
    except OSError:
        part.unlink(missing_ok=True)


def _has_ended(log: Path, size: int) -> bool:
    with log.open("rb") as file:
        file.seek(max(0, size - 4096))
        last = file.read().splitlines()[-1]
    try:
        event = json.loads(last)
    except ValueError:
        return False
    return event.get("type") == "state" and event["data"]["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
