"""The tables of the database. What is changed here needs a migration in `service/database/migrations/versions`."""

from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, String, UniqueConstraint, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """Root of the tables."""


class LabelRow(Base):
    """One label of one job; a table of its own, so that every database can search it."""

    __tablename__ = "labels"
    __table_args__ = (Index("ix_labels_key_value", "key", "value"),)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[str] = mapped_column(String(200))


class JobRow(Base):
    """One job."""

    __tablename__ = "jobs"
    __table_args__ = (
        UniqueConstraint("user", "idempotency_key", name="uq_jobs_user_key"),
        Index("ix_jobs_user_state", "user", "state"),
    )
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    created: Mapped[float]
    name: Mapped[str] = mapped_column(String(64))
    priority: Mapped[int]
    spec: Mapped[dict[str, Any]] = mapped_column(JSON)
    state: Mapped[str] = mapped_column(String(16), index=True)
    reason: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(default="")
    run_dir: Mapped[str]
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    body_hash: Mapped[str] = mapped_column(String(64))
    finished: Mapped[float | None]
    progress: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    user: Mapped[str] = mapped_column(String(64), server_default="local")
    forked_from: Mapped[str | None] = mapped_column(String(64))
    """`<job>/<step>`: the checkpoint that it began from."""
    ttl_s: Mapped[float | None]
    """How long it is kept once it has ended; none: as long as the service keeps jobs."""
    notes: Mapped[str] = mapped_column(server_default="")
    archived: Mapped[bool] = mapped_column(server_default=false())
    """Whether lists leave it out unless they are asked for it."""
    project: Mapped[str] = mapped_column(String(64), server_default="default", index=True)
    labels: Mapped[list[LabelRow]] = relationship(lazy="raise", cascade="all, delete-orphan")


class ProjectRow(Base):
    """One project."""

    __tablename__ = "projects"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    created: Mapped[float]
    share: Mapped[float]
    members: Mapped[list[str]] = mapped_column(JSON)
    admins: Mapped[list[str]] = mapped_column(JSON, server_default="[]")
    quota: Mapped[dict[str, Any]] = mapped_column(JSON)


class SweptRow(Base):
    """A job that a sweep starts and ends: a trial. It is not in the queue."""

    __tablename__ = "swept"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    sweep: Mapped[str] = mapped_column(String(32), index=True)


class SweepRow(Base):
    """One sweep."""

    __tablename__ = "sweeps"
    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    created: Mapped[float] = mapped_column(index=True)
    user: Mapped[str] = mapped_column(String(64))
    state: Mapped[str] = mapped_column(String(16))
    archived: Mapped[bool]
    ledger: Mapped[dict[str, Any]] = mapped_column(JSON)
    """What its ledger has of the sweep itself, the spec among it."""


class SweepTrialRow(Base):
    """One trial, as the ledger of its sweep has it."""

    __tablename__ = "sweep_trials"
    sweep: Mapped[str] = mapped_column(ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    ledger: Mapped[dict[str, Any]] = mapped_column(JSON)


class TokenRow(Base):
    """One token."""

    __tablename__ = "tokens"
    id: Mapped[str] = mapped_column(String(8), primary_key=True)
    user: Mapped[str] = mapped_column(String(64), index=True)
    role: Mapped[str] = mapped_column(String(8))
    digest: Mapped[str] = mapped_column(String(64))
    created: Mapped[float]
    expires: Mapped[float | None]
    revoked: Mapped[float | None]
    kind: Mapped[str] = mapped_column(String(8), server_default="token")
    """`token`, or after a sign-in `session`, what a browser shows in a cookie and nowhere else, and `login`, what a
    command line shows."""
    projects: Mapped[list[str] | None] = mapped_column(JSON)
    """Into which the groups of a session's user let them submit."""


class AccountRow(Base):
    """Which account of the sign-in provider has a user's name."""

    __tablename__ = "accounts"
    user: Mapped[str] = mapped_column(String(64), primary_key=True)
    issuer: Mapped[str] = mapped_column(String(500))
    subject: Mapped[str] = mapped_column(String(255))
    created: Mapped[float]


class WebhookRow(Base):
    """One webhook."""

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(String(16), primary_key=True)
    url: Mapped[str] = mapped_column(String(500))
    secret: Mapped[str] = mapped_column(String(64))
    states: Mapped[list[str]] = mapped_column(JSON)
    user: Mapped[str] = mapped_column(String(64))
    created: Mapped[float]


class JobCursorRow(Base):
    """How far a job's log has been turned into deliveries."""

    __tablename__ = "told"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))


class SweepCursorRow(Base):
    """How far a sweep's log has been turned into deliveries."""

    __tablename__ = "told_of_sweeps"
    sweep: Mapped[str] = mapped_column(String(64), primary_key=True)
    seq: Mapped[int]


class DeliveryRow(Base):
    """One message to one webhook."""

    __tablename__ = "deliveries"
    __table_args__ = (UniqueConstraint("webhook_id", "job_id", "seq"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    job_id: Mapped[str] = mapped_column(String(64))
    """The id of the job or the sweep."""
    seq: Mapped[int]
    body: Mapped[dict[str, Any]] = mapped_column(JSON)
    attempts: Mapped[int]
    due: Mapped[float | None] = mapped_column(index=True)
    """When it is tried next; none: not again."""
    delivered: Mapped[float | None]
    error: Mapped[str]


class AuditRow(Base):
    """One change, or the attempt at one that the role did not allow."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True)
    time: Mapped[float]
    user: Mapped[str] = mapped_column(String(64))
    role: Mapped[str] = mapped_column(String(8))
    token: Mapped[str | None] = mapped_column(String(8))
    address: Mapped[str] = mapped_column(String(128))
    request_id: Mapped[str] = mapped_column(String(64))
    action: Mapped[str] = mapped_column(String(64))
    target: Mapped[str | None] = mapped_column(String(64), index=True)
    status: Mapped[int]
    details: Mapped[dict[str, Any]] = mapped_column(JSON)


class ModelVersionRow(Base):
    """One version of a registered model. Its job may be gone."""

    __tablename__ = "model_versions"
    __table_args__ = (UniqueConstraint("name", "version"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64))
    version: Mapped[int]
    job_id: Mapped[str] = mapped_column(String(16), index=True)
    which: Mapped[str] = mapped_column(String(8))
    """Which of the job's models."""
    user: Mapped[str] = mapped_column(String(64))
    created: Mapped[float]
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    notes: Mapped[str]
    facts: Mapped[dict[str, Any]] = mapped_column(JSON)
    removed: Mapped[float | None]
    """When it was removed: its number does not come again."""
