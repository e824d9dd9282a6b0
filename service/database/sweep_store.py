"""What the service keeps of its sweeps: of each its ledger, as rows that every database can hold."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, delete, insert, select, update

from service.database.connection import Writer
from service.database.job_query import PageQuery
from service.database.tables import JobRow, SweepRow, SweepTrialRow, SweptRow

Values = dict[str, Any]


class SweepHead(NamedTuple):
    """What a sweep is listed by."""

    created: float
    """Seconds since 1970."""
    id: str

    @property
    def token(self) -> str:
        """Of the page that follows."""
        return f"{int(1e6 * self.created)}-{self.id}"


class SweepStore:
    """The sweeps of one service in its database."""

    def __init__(self, engine: Engine, writer: Writer) -> None:
        self.engine = engine
        self.writer = writer

    def save(self, sweep: str, values: Values, trials: Mapping[int, Values]) -> None:
        """Store a sweep's own values, and those of its trials that have changed, by their numbers. Returns when that is
        durable."""
        row = {
            "created": values["created"],
            "user": values.get("user", "local"),
            "state": values["state"],
            "archived": bool(values.get("archived", False)),
            "ledger": values,
        }
        self.writer.submit(lambda connection: _save(connection, sweep, row, trials), may_wait=True).result()

    def archive_trials(self, sweep: str, archived: bool) -> None:
        """The jobs that are its trials go with it."""
        trials = select(SweptRow.job_id).where(SweptRow.sweep == sweep)
        change = update(JobRow).where(JobRow.id.in_(trials)).values(archived=archived)
        self.writer.submit(lambda connection: connection.execute(change)).result()

    def remove(self, sweep: str) -> None:
        """Forget a sweep and its trials."""
        self.writer.submit(lambda connection: connection.execute(delete(SweepRow).where(SweepRow.id == sweep))).result()

    def ids(self) -> list[str]:
        """Of all sweeps."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(SweepRow.id)))

    def get(self, sweep: str) -> tuple[Values, list[Values]]:
        """The values of a sweep, and those of its trials in their order. Of one that is there."""
        trials = select(SweepTrialRow.ledger).where(SweepTrialRow.sweep == sweep).order_by(SweepTrialRow.number)
        with self.engine.connect() as connection:
            values = connection.scalars(select(SweepRow.ledger).where(SweepRow.id == sweep)).one()
            return values, list(connection.scalars(trials))

    def find(self, query: PageQuery) -> list[SweepHead]:
        """Sweeps, newest first, one more than asked for if there are more. `before` is the token of a page."""
        wanted = (
            select(SweepRow.created, SweepRow.id, SweepRow.ledger)
            .where(SweepRow.archived.is_(query.archived))
            .order_by(SweepRow.created.desc(), SweepRow.id.desc())
        )
        if query.states:
            wanted = wanted.where(SweepRow.state.in_([str(state) for state in query.states]))
        if query.user is not None:
            wanted = wanted.where(SweepRow.user == query.user)
        after = _place(query.before)
        found: list[SweepHead] = []
        with self.engine.connect() as connection:
            for created, sweep, values in connection.execution_options(yield_per=100).execute(wanted):
                head = SweepHead(created, sweep)
                job = values["spec"]["job"]
                is_asked_for = query.project in (None, job.get("project", "default"))
                if is_asked_for and (after is None or _place(head.token) < after) and _has(job["labels"], query.labels):
                    found.append(head)
                if len(found) > query.limit:
                    break
        return found


def _save(connection: Connection, sweep: str, row: Values, trials: Mapping[int, Values]) -> None:
    if not connection.execute(update(SweepRow).where(SweepRow.id == sweep).values(**row)).rowcount:
        connection.execute(insert(SweepRow).values(id=sweep, **row))
    for number, values in trials.items():
        here = (SweepTrialRow.sweep == sweep, SweepTrialRow.number == number)
        if not connection.execute(update(SweepTrialRow).where(*here).values(ledger=values)).rowcount:
            connection.execute(insert(SweepTrialRow).values(sweep=sweep, number=number, ledger=values))


def _place(token: str | None) -> Any:
    """Where a page's token stands: microseconds since 1970 and an id."""
    if token is None:
        return None
    created, _, sweep = token.partition("-")
    return int(created), sweep


def _has(labels: Mapping[str, str], wanted: Sequence[tuple[str, str | None]]) -> bool:
    return all(key in labels and value in (None, labels[key]) for key, value in wanted)
