"""Webhooks and their deliveries. All calls block.

The states in the log of each job and sweep are turned into deliveries, once each, whenever the stored state of a job
differs from the last one that was turned into a delivery, or the log of a sweep has grown. So nothing is lost while the
service is down. It is done once more before a log is removed.
"""

import json
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.database.tables import DeliveryRow, JobCursorRow, JobRow, SweepCursorRow, WebhookRow
from service.errors import WebhookNotFound
from service.ids import new_job_id
from service.status import SUBMITTED, submission
from service.sweeps.trial_store import TrialStore
from service.webhooks.signature import new_secret
from trainers import Documented, Event, EventLogReader, State

SHOWN = 20
TOGETHER = 200
OF_EACH = 20
"""Of one webhook, so that one with many does not keep the others waiting."""


class Webhook(Documented):
    """A URL that is sent a message when a job or a sweep changes its state."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    id: str
    url: str
    states: list[State]
    """The states that cause a message; empty: all."""
    user: str
    created: float
    """Seconds since 1970; earlier changes cause no message."""


class Delivery(Documented):
    """A message to a webhook."""

    model_config = ConfigDict(frozen=True, from_attributes=True)

    job_id: str
    """The id of the job or of the sweep."""
    seq: int
    """The number of the event in its log."""
    body: dict[str, Any]
    attempts: int
    due: float | None
    """When it is tried next, in seconds since 1970; null: not again."""
    delivered: float | None
    error: str
    """What went wrong the last time."""


class Due(BaseModel):
    """A delivery that is to be sent now."""

    model_config = ConfigDict(frozen=True)

    id: int
    message_id: str
    webhook_id: str
    url: str
    secret: str
    body: bytes
    attempts: int


class Webhooks:
    """The webhooks of one database."""

    def __init__(self, engine: Engine, sweeps: Path) -> None:
        """sweeps: The folder of the sweeps."""
        self.engine = engine
        self.writing = engine.execution_options(writes=True)
        self.sweeps = sweeps
        self.readers: dict[str, EventLogReader] = {}
        """Logs of jobs whose state in the store is not in their log yet."""
        self.sweep_readers: dict[Path, EventLogReader] = {}
        self.collecting = threading.Lock()
        """The sender collects again and again, and whoever removes a job or a sweep does before its log is gone."""
        self.changes = 0
        """How often webhooks were created or deleted here; nobody else does."""
        self.known: tuple[int, list[Webhook]] = -1, []
        """All, as of so many changes: the sender asks every second."""

    def create(self, url: str, states: list[State], user: str) -> tuple[Webhook, str]:
        """Create one for a URL that was checked. Returns it and its secret, which is shown this once."""
        secret = new_secret()
        values = {"url": url, "secret": secret, "states": [str(state) for state in states], "user": user}
        row = WebhookRow(id=new_job_id(), created=time.time(), **values)
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            session.add(row)
        self.changes += 1
        return Webhook.model_validate(row), secret

    def all(self) -> list[Webhook]:
        """All, newest first."""
        with Session(self.engine) as session:
            rows = session.scalars(_ALL)
            return [Webhook.model_validate(row) for row in rows]

    def get(self, webhook_id: str) -> Webhook:
        """One. Raises WebhookNotFound."""
        with Session(self.engine) as session:
            row = session.get(WebhookRow, webhook_id)
            if row is None:
                raise WebhookNotFound(f"there is no webhook {webhook_id!r}")
            return Webhook.model_validate(row)

    def delete(self, webhook_id: str) -> None:
        """Delete one with its deliveries. Raises WebhookNotFound."""
        self.get(webhook_id)
        with self.writing.begin() as connection:
            connection.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id))
            connection.execute(delete(WebhookRow).where(WebhookRow.id == webhook_id))
        self.changes += 1

    def deliveries(self, webhook_id: str) -> list[Delivery]:
        """Its last messages, newest first."""
        statement = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id)
        with Session(self.engine) as session:
            rows = session.scalars(statement.order_by(DeliveryRow.id.desc()).limit(SHOWN))
            return [Delivery.model_validate(row) for row in rows]

    # -- what the sender asks -------------------------------------------------------------------------------------

    def collect(self) -> bool:
        """Turn the new states in the logs into deliveries. Returns whether there is any webhook."""
        with self.collecting:
            if self.known[0] != (changes := self.changes):
                self.known = changes, self.all()
            hooks = self.known[1]
            try:
                if hooks:
                    self._collect_jobs(hooks)
                    self._collect_sweeps(hooks)
            except Exception:  # what was read and not stored is read again
                self.readers, self.sweep_readers = {}, {}
                raise
            return bool(hooks)

    def _collect_jobs(self, hooks: list[Webhook]) -> None:
        since = min(hook.created for hook in hooks)
        about = JobRow.id, JobRow.name, JobRow.run_dir, JobRow.state, JobRow.reason, JobRow.created
        statement = select(*about, JobCursorRow.seq)
        statement = statement.outerjoin(JobCursorRow, JobCursorRow.job_id == JobRow.id)
        statement = statement.where(or_(JobCursorRow.state.is_(None), JobCursorRow.state != JobRow.state))
        statement = statement.where(or_(JobRow.finished.is_(None), JobRow.finished >= since))
        with self.engine.connect() as connection:
            changed = connection.execute(statement).all()
        self.readers = {
            row.id: self.readers.get(row.id) or EventLogReader(Path(row.run_dir), row.seq or 0) for row in changed
        }
        for job_id, name, _, state, reason, created, seq in changed:
            states = [event for event in self.readers[job_id].read() if event.type == "state"]
            if not states and seq is None and (state, reason) == (SUBMITTED.state, SUBMITTED.reason):
                states = [submission(created)]  # its log begins with that, once it begins
            if states:
                state_now = str(states[-1].data["state"])
                kept = JobCursorRow(job_id=job_id, seq=states[-1].seq, state=state_now)
                self._add([_delivery(*pair, job_id, name) for pair in _wanted(states, hooks)], kept)
            if states and states[-1].data["state"] == state:
                del self.readers[job_id]

    def _collect_sweeps(self, hooks: list[Webhook]) -> None:
        folders = set(self.sweeps.iterdir() if self.sweeps.is_dir() else ())
        self.sweep_readers = {folder: self.sweep_readers[folder] for folder in folders & self.sweep_readers.keys()}
        for folder in folders:
            store = TrialStore(folder)
            if not store.exists:
                continue
            reader = self.sweep_readers.get(folder)
            if reader is None:
                with Session(self.engine) as session:
                    row = session.get(SweepCursorRow, folder.name)
                reader = self.sweep_readers[folder] = EventLogReader(folder, 0 if row is None else row.seq)
            if not reader.path.exists() or reader.path.stat().st_size == reader.offset:
                continue
            if states := [event for event in reader.read() if event.type == "state"]:
                name, kept = store.get("spec")["name"], SweepCursorRow(sweep=folder.name, seq=states[-1].seq)
                self._add([_delivery(*pair, folder.name, name, "sweep") for pair in _wanted(states, hooks)], kept)

    def _add(self, deliveries: list[DeliveryRow], kept: JobCursorRow | SweepCursorRow) -> None:
        """Store deliveries, and in the same transaction how far the log has been read."""
        with Session(self.writing) as session, session.begin():
            session.add_all(deliveries)
            session.merge(kept)

    def due(self, but: Collection[str] = ()) -> list[Due]:
        """The oldest deliveries that are due of each webhook, in their order, but for these webhooks."""
        place = func.row_number().over(partition_by=DeliveryRow.webhook_id, order_by=DeliveryRow.id).label("place")
        is_due = DeliveryRow.due <= time.time(), DeliveryRow.webhook_id.not_in(but)
        waiting = select(DeliveryRow.id, place).where(*is_due).subquery()
        statement = select(DeliveryRow, WebhookRow).join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        statement = statement.join(waiting, waiting.c.id == DeliveryRow.id).where(waiting.c.place <= OF_EACH)
        statement = statement.order_by(waiting.c.place, DeliveryRow.id).limit(TOGETHER)
        with Session(self.engine) as session:
            return [
                Due(
                    id=row.id,
                    message_id=f"msg_{hook.id}_{row.job_id}_{row.seq}",
                    webhook_id=hook.id,
                    url=hook.url,
                    secret=hook.secret,
                    body=json.dumps(row.body, separators=(",", ":")).encode(),
                    attempts=row.attempts,
                )
                for row, hook in session.execute(statement)
            ]

    def tried(self, due: Due, error: str, again_s: float | None) -> None:
        """Store an attempt: its error, and the seconds until the next one, if there is one."""
        now = time.time()
        values: dict[str, Any] = {"attempts": due.attempts + 1, "error": error[:300], "due": None}
        if not error:
            values["delivered"] = now
        elif again_s is not None:
            values["due"] = now + again_s
        with self.writing.begin() as connection:
            connection.execute(update(DeliveryRow).where(DeliveryRow.id == due.id).values(**values))


_ALL = select(WebhookRow).order_by(WebhookRow.id.desc())


def _wanted(states: list[Event], hooks: list[Webhook]) -> Iterator[tuple[Webhook, Event]]:
    """The webhooks to notify of each event."""
    for event in states:
        for hook in hooks:
            if event.time >= hook.created and (not hook.states or event.data["state"] in hook.states):
                yield hook, event


def _delivery(hook: Webhook, event: Event, identity: str, name: str, kind: str = "job") -> DeliveryRow:
    data = {f"{kind}_id": identity, "name": name, "seq": event.seq} | {
        key: event.data.get(key, "") for key in ("state", "reason", "message")
    }
    return DeliveryRow(
        webhook_id=hook.id,
        job_id=identity,
        seq=event.seq,
        body={"type": f"{kind}.state", "timestamp": event.time, "data": data},
        attempts=0,
        due=0.0,
        delivered=None,
        error="",
    )
