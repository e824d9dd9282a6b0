"""A ledger as plain rows, and a ledger made of them."""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from service.sweeps.trial_store import FILE_NAME, TABLES, TrialStore

Values = dict[str, Any]
KEPT = ("number", "id", "key", "settings", "state", "reason", "message", "asked", "starts", "share", "error", "started",
        "finished")  # fmt: skip
"""Of a trial, but for its job, which does not change."""


def sweep_values(store: TrialStore) -> Values:
    """What the ledger has of the sweep itself."""
    with store.reading() as db:
        return {name: json.loads(value) for name, value in db.execute("SELECT name, value FROM sweep")}


def trial_values(store: TrialStore, known: Mapping[int, Values]) -> dict[int, Values]:
    """The trials that are not as they are known, by number, with their jobs."""
    with store.reading() as db:
        rows = db.execute(f"SELECT {', '.join(KEPT)} FROM trials ORDER BY number").fetchall()
        found = [dict(zip(KEPT, row, strict=True)) for row in rows]
        changed = [row for row in found if known.get(row["number"]) != row]
        jobs = _jobs(db, [row["number"] for row in changed])
    return {row["number"]: row | {"job": jobs[row["number"]]} for row in changed}


def _jobs(db: sqlite3.Connection, numbers: Collection[int]) -> dict[int, str]:
    return {
        number: db.execute("SELECT job FROM trials WHERE number = ?", (number,)).fetchone()[0] for number in numbers
    }


def write_ledger(store: TrialStore, values: Values, trials: Sequence[Values]) -> None:
    """Make the ledger of a sweep whose folder has none; renamed when it is whole."""
    part = TrialStore(store.folder, f"{FILE_NAME}.part")
    part.path.unlink(missing_ok=True)
    store.folder.mkdir(parents=True, exist_ok=True)
    names = (*KEPT, "job")
    with part.reading() as db:
        db.executescript(TABLES)
    with part.writing() as db:
        db.executemany("INSERT INTO sweep VALUES (?, ?)", [(name, json.dumps(one)) for name, one in values.items()])
        db.executemany(
            f"INSERT INTO trials ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})",
            [tuple(row[name] for name in names) for row in trials],
        )
    part.path.rename(store.path)
