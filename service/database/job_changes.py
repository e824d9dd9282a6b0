"""What may change of a job after its submission: how it is found, what is said of it, and its place in the queue."""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, field_validator
from sqlalchemy import Connection, Table, delete, insert, select, update

from service.database.tables import SweptRow
from service.errors import SpecInvalid
from service.spec import MAX_LABELS, NAME, check_label, is_text
from trainers import Documented, FieldError

MAX_NOTES = 10_000
TOLD_OF_NOTES = 100
"""Characters of a note that the audit and the log repeat."""
OF_TRIALS = "sweep"
"""The label of a trial: its sweep."""
NO_TRIAL = FieldError(
    pointer=f"/labels/{OF_TRIALS}", message="names the sweep of a trial, and this job is none: take another key"
)


class JobChanges(Documented):
    """Fields of a job or a sweep that change, and no others: a merge patch (RFC 7396). The last writer of one wins."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(default="", pattern=NAME, examples=["baseline"])
    """Letters, digits, dots, dashes and underscores, at most 63."""
    labels: dict[str, str | None] = Field(default={}, max_length=2 * MAX_LABELS, examples=[{"team": "vision"}])
    """Labels that are set; null takes one away; those that are not named stay."""
    notes: str = Field(default="", max_length=MAX_NOTES)
    """What you want to say of it, at most 10,000 characters."""
    priority: int = Field(default=0, ge=-100, le=100)
    """A waiting job moves in the queue; of a running one, it says to whom it gives way. Not of a trial or of what has
    ended; that of a sweep is its trials'."""
    archived: bool = False
    """Whether lists leave it out unless they are asked for it. Only of what has ended; a sweep that is archived is kept
    beyond its `ttl_s`."""

    @field_validator("labels")
    @classmethod
    def _can_be_kept(cls, labels: dict[str, str | None]) -> dict[str, str | None]:
        for key, value in labels.items():
            check_label(key, value or "")
        return labels

    @field_validator("notes")
    @classmethod
    def _is_text(cls, notes: str) -> str:
        if not is_text(notes):
            raise ValueError("notes are no text that can be kept; leave out NUL and lone surrogates")
        return notes

    @property
    def given(self) -> dict[str, Any]:
        """The fields that change."""
        return self.model_dump(exclude_unset=True)

    @property
    def told(self) -> dict[str, Any]:
        """The same for the log and the audit, with the beginning of a long note."""
        given = self.given
        return given | ({"notes": given["notes"][:TOLD_OF_NOTES]} if "notes" in given else {})


def apply_changes(connection: Connection, tables: tuple[Table, Table], job_id: str, changes: JobChanges) -> None:
    """Change a job in the tables of jobs and labels. Raises SpecInvalid if it would have too many labels, of a
    trial another sweep, or of another job one."""
    jobs, labels = tables
    values = {name: value for name, value in changes.given.items() if name != "labels"}
    if values:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    if changes.labels:
        if OF_TRIALS in changes.labels and _is_trial(connection, job_id):
            message = "names the sweep of a trial, by which it is found: leave it"
            raise SpecInvalid([FieldError(pointer=f"/labels/{OF_TRIALS}", message=message)])
        if changes.labels.get(OF_TRIALS) is not None:
            raise SpecInvalid([NO_TRIAL])
        rows = connection.execute(select(labels.c.key, labels.c.value).where(labels.c.job_id == job_id))
        before = {row.key: row.value for row in rows}
        _replace_labels(connection, labels, job_id, merged_labels(before, changes.labels))


def _is_trial(connection: Connection, job_id: str) -> bool:
    return connection.scalar(select(SweptRow.job_id).where(SweptRow.job_id == job_id)) is not None


def merged_labels(labels: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """Labels with others set, and those taken away whose value is None. Raises SpecInvalid for too many."""
    merged = {key: value for key, value in {**labels, **changed}.items() if value is not None}
    if len(merged) > MAX_LABELS:
        message = f"there would be {len(merged)} labels; take some away, at most {MAX_LABELS} are kept"
        raise SpecInvalid([FieldError(pointer="/labels", message=message)])
    return merged


def _replace_labels(connection: Connection, labels: Table, job_id: str, merged: Mapping[str, str]) -> None:
    connection.execute(delete(labels).where(labels.c.job_id == job_id))
    if merged:
        rows = [{"job_id": job_id, "key": key, "value": value} for key, value in merged.items()]
        connection.execute(insert(labels), rows)
