"""Webhooks and what they are still to be told. All calls block.

The log of each job and of each sweep says what happened to it. What it says of states is copied from there into
deliveries, once each, whenever the store's state of a job is another than was last copied, or a sweep's log has grown:
so nothing is lost while the service is down.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Engine, delete, or_, select, update
from sqlalchemy.orm import Session

from service.errors import WebhookNotFound
from service.signature import new_secret
from service.store import new_job_id
from service.sweeps.ledger import Ledger
from service.tables import DeliveryRow, JobRow, ToldOfSweepRow, ToldRow, WebhookRow
from trainers import Event, JournalReader, State

SHOWN = 20
TOGETHER = 200


class Webhook(BaseModel):
    """An address that is told when jobs and sweeps change their state."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True)

    id: str
    url: str
    states: list[State]
    """Which states are told; empty: all."""
    user: str
    created: float
    """Seconds since 1970; what was before is not told."""


class Delivery(BaseModel):
    """A message to a webhook."""

    model_config = ConfigDict(frozen=True, from_attributes=True, use_attribute_docstrings=True)

    job_id: str
    """Of the job, or of the sweep."""
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
    """What is to be sent now."""

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
        self.readers: dict[str, JournalReader] = {}
        """Logs of jobs whose state in the store is not in their log yet."""
        self.sweep_readers: dict[Path, JournalReader] = {}

    def create(self, url: str, states: list[State], user: str) -> tuple[Webhook, str]:
        """A new one, and its secret, which is shown this once. Whether the URL will do was checked before."""
        secret = new_secret()
        values = {"url": url, "secret": secret, "states": [str(state) for state in states], "user": user}
        row = WebhookRow(id=new_job_id(), created=time.time(), **values)
        with Session(self.writing, expire_on_commit=False) as session, session.begin():
            session.add(row)
        return Webhook.model_validate(row), secret

    def all(self) -> list[Webhook]:
        """All, newest first."""
        with Session(self.engine) as session:
            rows = session.scalars(select(WebhookRow).order_by(WebhookRow.id.desc()))
            return [Webhook.model_validate(row) for row in rows]

    def get(self, webhook_id: str) -> Webhook:
        """One. Raises WebhookNotFound."""
        with Session(self.engine) as session:
            row = session.get(WebhookRow, webhook_id)
            if row is None:
                raise WebhookNotFound(f"there is no webhook {webhook_id!r}")
            return Webhook.model_validate(row)

    def delete(self, webhook_id: str) -> None:
        """End one, and forget what it was still to be told. Raises WebhookNotFound."""
        self.get(webhook_id)
        with self.writing.begin() as connection:
            connection.execute(delete(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id))
            connection.execute(delete(WebhookRow).where(WebhookRow.id == webhook_id))

    def deliveries(self, webhook_id: str) -> list[Delivery]:
        """Its last messages, newest first."""
        statement = select(DeliveryRow).where(DeliveryRow.webhook_id == webhook_id)
        with Session(self.engine) as session:
            rows = session.scalars(statement.order_by(DeliveryRow.id.desc()).limit(SHOWN))
            return [Delivery.model_validate(row) for row in rows]

    # -- what the sender asks -------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Make deliveries of what the logs say that is new."""
        if hooks := self.all():
            self._collect_jobs(hooks)
            self._collect_sweeps(hooks)

    def _collect_jobs(self, hooks: list[Webhook]) -> None:
        since = min(hook.created for hook in hooks)
        statement = select(JobRow.id, JobRow.name, JobRow.run_dir, JobRow.state, ToldRow.seq)
        statement = statement.outerjoin(ToldRow, ToldRow.job_id == JobRow.id)
        statement = statement.where(or_(ToldRow.state.is_(None), ToldRow.state != JobRow.state))
        statement = statement.where(or_(JobRow.finished.is_(None), JobRow.finished >= since))
        with self.engine.connect() as connection:
            changed = connection.execute(statement).all()
        for job_id, name, run_dir, state, seq in changed:
            reader = self.readers.setdefault(job_id, JournalReader(Path(run_dir), seq or 0))
            told = [event for event in reader.read() if event.type == "state"]
            if told:
                state_now = str(told[-1].data["state"])
                kept = ToldRow(job_id=job_id, seq=told[-1].seq, state=state_now)
                self._add([_delivery(*pair, job_id, name) for pair in _wanted(told, hooks)], kept)
            if told and told[-1].data["state"] == state:
                del self.readers[job_id]

    def _collect_sweeps(self, hooks: list[Webhook]) -> None:
        for folder in self.sweeps.iterdir() if self.sweeps.is_dir() else ():
            ledger = Ledger(folder)
            if not ledger.exists:
                continue
            reader = self.sweep_readers.get(folder)
            if reader is None:
                with Session(self.engine) as session:
                    row = session.get(ToldOfSweepRow, folder.name)
                reader = self.sweep_readers[folder] = JournalReader(folder, 0 if row is None else row.seq)
            if not reader.path.exists() or reader.path.stat().st_size == reader.offset:
                continue
            if told := [event for event in reader.read() if event.type == "state"]:
                name, kept = ledger.spec.name, ToldOfSweepRow(sweep=folder.name, seq=told[-1].seq)
                self._add([_delivery(*pair, folder.name, name, "sweep") for pair in _wanted(told, hooks)], kept)

    def _add(self, deliveries: list[DeliveryRow], kept: ToldRow | ToldOfSweepRow) -> None:
        """Deliveries, and in the same transaction how far the log is copied with them."""
        with Session(self.writing) as session, session.begin():
            session.add_all(deliveries)
            session.merge(kept)

    def due(self) -> list[Due]:
        """What is to be sent now, oldest first."""
        statement = select(DeliveryRow, WebhookRow).join(WebhookRow, WebhookRow.id == DeliveryRow.webhook_id)
        statement = statement.where(DeliveryRow.due <= time.time()).order_by(DeliveryRow.id).limit(TOGETHER)
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
        """Note an attempt: what went wrong, and in how many seconds it is tried again, if it is."""
        now = time.time()
        values: dict[str, Any] = {"attempts": due.attempts + 1, "error": error[:300], "due": None}
        if not error:
            values["delivered"] = now
        elif again_s is not None:
            values["due"] = now + again_s
        with self.writing.begin() as connection:
            connection.execute(update(DeliveryRow).where(DeliveryRow.id == due.id).values(**values))


def _wanted(told: list[Event], hooks: list[Webhook]) -> Iterator[tuple[Webhook, Event]]:
    """Who is to hear what."""
    for event in told:
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
