"""What may change of a job after its submission: how it is found, what is said of it, and its place in the queue."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from sqlalchemy import Connection, Table, delete, insert, select, update

from service.errors import SpecInvalid
from service.spec import MAX_LABELS, NAME, check_label, is_text
from trainers import FieldError

MAX_NOTES = 10_000
TOLD_OF_NOTES = 100
"""Characters of a note that the audit and the log repeat."""


class JobChanges(BaseModel):
    """Fields of a job that change, and no others: a merge patch (RFC 7396). The last writer of a field wins."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)

    name: str = Field(default="", pattern=NAME, examples=["baseline"])
    """Letters, digits, dots, dashes and underscores, at most 63."""
    labels: dict[str, str | None] = Field(default={}, max_length=2 * MAX_LABELS, examples=[{"team": "vision"}])
    """Labels that are set; null takes one away; those that are not named stay."""
    notes: str = Field(default="", max_length=MAX_NOTES)
    """What you want to say of the job, at most 10,000 characters."""
    priority: int = Field(default=0, ge=-100, le=100)
    """A waiting job moves in the queue; of a running one, it says to whom it gives way. Not of a trial or an ended
    job."""
    archived: bool = False
    """Whether lists leave the job out unless they are asked for it. Only of a job that has ended."""

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
    """Change a job in the tables of jobs and labels. Raises SpecInvalid if it would have too many labels."""
    jobs, labels = tables
    values = {name: value for name, value in changes.given.items() if name != "labels"}
    if values:
        connection.execute(update(jobs).where(jobs.c.id == job_id).values(**values))
    if changes.labels:
        rows = connection.execute(select(labels.c.key, labels.c.value).where(labels.c.job_id == job_id))
        before = {row.key: row.value for row in rows}
        _replace_labels(connection, labels, job_id, _merged(before, changes.labels))


def _merged(labels: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    merged = {key: value for key, value in {**labels, **changed}.items() if value is not None}
    if len(merged) > MAX_LABELS:
        message = f"the job would have {len(merged)} labels; take some away, at most {MAX_LABELS} are kept"
        raise SpecInvalid([FieldError(pointer="/labels", message=message)])
    return merged


def _replace_labels(connection: Connection, labels: Table, job_id: str, merged: Mapping[str, str]) -> None:
    connection.execute(delete(labels).where(labels.c.job_id == job_id))
    if merged:
        rows = [{"job_id": job_id, "key": key, "value": value} for key, value in merged.items()]
        connection.execute(insert(labels), rows)
