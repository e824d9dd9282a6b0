"""The trials of a sweep and how each ended, in a database file of their own in the sweep's folder.

Several processes open it: the driver, each trial, and whoever started the sweep. Every change is one transaction, and
it names the states that a trial may be in before it, so that no trial ends twice.

trial: QUEUED -> RUNNING -> SUCCEEDED, FAILED, STOPPED (early, on purpose) or CANCELLED; RUNNING -> QUEUED when the
process that ran it has died.
sweep: QUEUED -> RUNNING -> SUCCEEDED, FAILED or CANCELLED; PAUSED in between; an extension reopens it.
"""

import contextlib
import hashlib
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, JsonValue

from service.ids import new_job_id
from service.scaling.metric import ERROR, Metric
from service.spec import JobSpec, stored
from service.status import Status
from service.sweeps.axes import Configuration
from service.sweeps.spec import SweepSpec
from trainers import Documented, State

FILE_NAME = "ledger.db"
BUSY_TIMEOUT_S = 30.0
TABLES = """
CREATE TABLE IF NOT EXISTS sweep (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS trials (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, key TEXT UNIQUE NOT NULL,
    settings TEXT NOT NULL, job TEXT NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '',
    message TEXT NOT NULL DEFAULT '', asked TEXT NOT NULL DEFAULT '', starts INTEGER NOT NULL DEFAULT 0,
    share REAL NOT NULL DEFAULT 0, error REAL, started REAL, finished REAL
);
"""


class TrialState(StrEnum):
    """The state of a trial."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    CANCELLED = "CANCELLED"

    @property
    def has_ended(self) -> bool:
        """Whether it will not run any more."""
        return self not in (TrialState.QUEUED, TrialState.RUNNING)

    @property
    def job_state(self) -> State:
        """The corresponding state of a job."""
        return State.CANCELLED if self is TrialState.STOPPED else State(self.value)


class Ending(BaseModel):
    """How a trial ends."""

    model_config = ConfigDict(frozen=True)

    state: TrialState
    reason: str
    message: str

    @classmethod
    def of(cls, status: Status) -> "Ending":
        """The end of a trial whose run ended with this status."""
        return cls(state=TrialState(status.state), reason=status.reason, message=status.message)

    @property
    def status(self) -> Status:
        """The same for the trial's job."""
        return Status(self.state.job_state, self.reason, self.message)


SWEEP_CANCELLED = Ending(state=TrialState.CANCELLED, reason="SweepCancelled", message="its sweep was cancelled")


class TrialRow(Documented):
    """A trial as it is stored."""

    model_config = ConfigDict(frozen=True)

    id: str
    """The job's id."""
    number: int
    """Within the sweep, from 1."""
    settings: dict[str, JsonValue]
    """Axis -> value."""
    job: dict[str, Any]
    """Its JobSpec, as JSON."""
    state: TrialState
    reason: str
    message: str
    starts: int
    """How often it was started: more than once where a driver died or the sweep was paused."""
    fraction: float
    """0 to 1: how much of it is trained."""
    error: float | None
    """Median test error of its last 5 epochs, or cost of another metric."""
    started: float | None
    """Seconds since 1970."""
    finished: float | None

    @property
    def job_spec(self) -> JobSpec:
        """The spec, parsed. Raises SpecUnreadable."""
        return stored(JobSpec, self.job, f"trial {self.id}")


class TrialProgress(NamedTuple):
    """The state of a trial, without its spec."""

    id: str
    state: TrialState
    fraction: float


class TrialStore:
    """The trials of the sweep in a folder. All calls block, for milliseconds."""

    def __init__(self, folder: Path, name: str = FILE_NAME) -> None:
        self.folder = folder
        self.path = folder / name

    def run_dir(self, trial: str) -> Path:
        """The run directory of a trial."""
        return self.folder / "runs" / trial

    @property
    def exists(self) -> bool:
        """Whether the folder holds a sweep."""
        return self.path.exists()

    def create(self, sweep_id: str, spec: SweepSpec, body_hash: str = "", user: str = "local") -> None:
        """Create a sweep without trials."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.reading() as db:
            db.executescript(TABLES)
            self._set(db, id=sweep_id, spec=spec.model_dump(mode="json"), created=time.time(), body_hash=body_hash)
            self._set(db, user=user)
            self._set(db, state=State.QUEUED, reason="Submitted", message="waits for its driver", used_s=0.0, lost=0)

    # -- the sweep ------------------------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the sweep itself: id, spec, created, body_hash, user, state, reason, message, used_s, notes,
        archived. default: Where an earlier Millrace did not store it, or nobody has yet."""
        with self.reading() as db:
            return self._get(db, name, default)

    @property
    def metric(self) -> Metric:
        """What its trials are compared by; the error until a trial has said otherwise."""
        found = self.get("metric")
        return ERROR if found is None else Metric.model_validate(found)

    def compares(self, metric: Metric) -> None:
        """Store what the trials are compared by."""
        with self.writing() as db:
            self._set(db, metric=metric.model_dump())

    @property
    def spec(self) -> SweepSpec:
        """As submitted, and extended since. Raises SpecUnreadable."""
        return stored(SweepSpec, self.get("spec"), f"sweep {self.folder.name}")

    @property
    def user(self) -> str:
        """Who submitted it."""
        return str(self.get("user", "local"))

    @property
    def state(self) -> State:
        """The state of the sweep."""
        return State(self.get("state"))

    @property
    def version(self) -> str:
        """Of what its report is made of: changes when a trial is added, evaluated or ended, and with the spec."""
        with self.reading() as db:
            (spec,) = db.execute("SELECT value FROM sweep WHERE name = 'spec'").fetchone()
            rows = db.execute("SELECT id, state, reason, share, error FROM trials ORDER BY number").fetchall()
        return hashlib.sha256(json.dumps([spec, rows]).encode()).hexdigest()[:16]

    def change(self, priority: int | None, **values: Any) -> None:
        """Store values of the sweep itself, and a priority of the trials that have not ended."""
        with self.writing() as db:
            self._set(db, **values)
            if priority is not None:
                change = "UPDATE trials SET job = json_set(job, '$.priority', ?) WHERE state IN ('QUEUED', 'RUNNING')"
                db.execute(change, (priority,))

    def move(self, from_states: Collection[State], status: Status) -> bool:
        """Change the sweep's status if its state is one of `from_states`. Returns whether it was."""
        with self.writing() as db:
            if State(self._get(db, "state")) not in from_states:
                return False
            self._set(db, **status.data, lost=0)
            return True

    def close(self, status: Status, with_queued: bool = False) -> bool:
        """End the sweep, unless a trial was added in the meantime. Returns whether it has ended.

        with_queued: End it even if trials are left, which stay as they are.
        """
        with self.writing() as db:
            (left,) = db.execute("SELECT count(*) FROM trials WHERE state IN ('QUEUED', 'RUNNING')").fetchone()
            if left and not with_queued:
                return False
            self._set(db, **status.data)
            return True

    def driver_starts(self) -> int:
        """Count the start of a driver. Returns how many have started since the last trial ended."""
        with self.writing() as db:
            lost = int(self._get(db, "lost")) + 1
            self._set(db, lost=lost)
            return lost

    def rest(self) -> None:
        """A driver has ended well: it is not among those lost."""
        with self.writing() as db:
            self._set(db, lost=0)

    def new_driver(self) -> int:
        """Number a driver that begins to run the sweep, from 1. Returns the number."""
        with self.writing() as db:
            number = int(self._get(db, "driver", 0)) + 1
            self._set(db, driver=number)
            return number

    @property
    def driver(self) -> int:
        """The number of the driver that has begun last; 0 before the first."""
        return int(self.get("driver", 0))

    def use(self, seconds: float) -> float:
        """Add to the time that the sweep has run. Returns the sum."""
        with self.writing() as db:
            used = float(self._get(db, "used_s")) + seconds
            self._set(db, used_s=used)
            return used

    # -- its trials -----------------------------------------------------------------------------------------------

    def add(self, spec: SweepSpec, found: Iterable[Configuration]) -> list[str]:
        """Add the configurations that are not there yet, and reopen the sweep for them. Returns their ids."""
        sweep_id, added = self.get("id"), []
        with self.writing() as db:
            known = {key for (key,) in db.execute("SELECT key FROM trials")}
            ids = {trial for (trial,) in db.execute("SELECT id FROM trials")}
            for number, one in enumerate((one for one in found if one.key not in known), len(known) + 1):
                while (trial := new_job_id()) in ids:
                    pass
                ids.add(trial)
                added.append(trial)
                labels = one.job.labels | {"sweep": sweep_id}
                job = one.job.model_copy(update={"name": f"{spec.name[:56]}-{number}", "labels": labels})
                values = (trial, one.key, json.dumps(one.settings), job.model_dump_json(), TrialState.QUEUED)
                db.execute("INSERT INTO trials (id, key, settings, job, state) VALUES (?, ?, ?, ?, ?)", values)
            self._set(db, spec=spec.model_dump(mode="json"))
            if State(self._get(db, "state")).is_terminal:
                (left,) = db.execute("SELECT count(*) FROM trials WHERE state = 'QUEUED'").fetchone()
                if left:
                    self._set(db, state=State.QUEUED, reason="Extended", message=f"{left} trials to run")
        return added

    def trials(self) -> list[TrialRow]:
        """All trials in their order."""
        return self._rows("ORDER BY number")

    def trial(self, trial: str) -> TrialRow | None:
        """One trial; none if there is no such trial."""
        found = self._rows("WHERE id = ?", trial)
        return found[0] if found else None

    def progress(self) -> list[TrialProgress]:
        """The state of each trial, without its spec, which is most of a row."""
        with self.reading() as db:
            rows = db.execute("SELECT id, state, share FROM trials ORDER BY number").fetchall()
        return [TrialProgress(trial, TrialState(state), fraction) for trial, state, fraction in rows]

    def counts(self) -> Counter[TrialState]:
        """The number of trials in each state."""
        return Counter(one.state for one in self.progress())

    def next_queued(self, but: Collection[str]) -> TrialRow | None:
        """The first queued trial that is not one of `but`."""
        with self.reading() as db:
            queued = db.execute("SELECT id FROM trials WHERE state = 'QUEUED' ORDER BY number").fetchall()
        first = next((trial for (trial,) in queued if trial not in but), None)
        return None if first is None else self.trial(first)

    def begin(self, trial: str) -> bool:
        """Mark a trial as running. Returns False if it is not queued any more."""
        change = "state = 'RUNNING', starts = starts + 1, started = coalesce(started, ?), reason = '', message = ''"
        return self._update(trial, "QUEUED", change, time.time())

    def note(self, trial: str, fraction: float, error: float | None) -> None:
        """Store how far a trial is."""
        self._update(trial, "RUNNING", "share = ?, error = coalesce(?, error)", fraction, error)

    def finish(self, trial: str, ending: Ending, error: float | None = None) -> bool:
        """Store the end of a trial. If it was asked to end, that counts more than how its run ended."""
        asked = self.asked(trial)
        if asked is not None and ending.state is TrialState.CANCELLED:
            ending = asked
        with self.writing() as db:
            self._set(db, lost=0)
        change = "state = ?, reason = ?, message = ?, finished = ?, error = coalesce(?, error)"
        values = (ending.state, ending.reason, ending.message, time.time(), error)
        return self._update(trial, "RUNNING", change, *values) or self._update(trial, "QUEUED", change, *values)

    def ask(self, trial: str, ending: Ending) -> bool:
        """Ask a trial to end early. A queued one ends at once, a running one is stopped. False if it has ended."""
        if self._update(trial, "QUEUED", "state = ?, reason = ?, message = ?, finished = ?",
                        ending.state, ending.reason, ending.message, time.time()):  # fmt: skip
            return True
        return self._update(trial, "RUNNING", "asked = ?", ending.model_dump_json())

    def asked(self, trial: str) -> Ending | None:
        """How a trial was asked to end, if it was."""
        with self.reading() as db:
            row = db.execute("SELECT asked FROM trials WHERE id = ?", (trial,)).fetchone()
        return Ending.model_validate_json(row[0]) if row and row[0] else None

    def requeue(self, trial: str) -> None:
        """Queue a trial again that no process runs any more. It goes on from its checkpoint."""
        self._update(trial, "RUNNING", "state = 'QUEUED', asked = ''")

    # -- the file -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The file, open; each statement is a transaction."""
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous=FULL")
            yield db
        finally:
            db.close()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self.reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")

    def _update(self, trial: str, state: str, change: str, *values: Any) -> bool:
        with self.reading() as db:
            statement = f"UPDATE trials SET {change} WHERE id = ? AND state = ?"
            return db.execute(statement, (*values, trial, state)).rowcount == 1

    def _rows(self, clause: str, *values: Any) -> list[TrialRow]:
        names = list(TrialRow.model_fields)
        columns = ", ".join("share AS fraction" if name == "fraction" else name for name in names)
        with self.reading() as db:
            rows = db.execute(f"SELECT {columns} FROM trials {clause}", values).fetchall()
        found = [dict(zip(names, row, strict=True)) for row in rows]
        return [TrialRow(**row | {"settings": json.loads(row["settings"]), "job": json.loads(row["job"])})
                for row in found]  # fmt: skip

    def _get(self, db: sqlite3.Connection, name: str, default: Any = None) -> Any:
        row = db.execute("SELECT value FROM sweep WHERE name = ?", (name,)).fetchone()
        return default if row is None else json.loads(row[0])

    def _set(self, db: sqlite3.Connection, **values: Any) -> None:
        rows = [(name, json.dumps(value)) for name, value in values.items()]
        db.executemany("INSERT OR REPLACE INTO sweep VALUES (?, ?)", rows)
