"""The database of every earlier Millrace is brought up to date; a later one's is left alone."""

import sqlite3
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service.database.connection import connect
from service.database.job_query import Query
from service.database.job_store import Store, Submission
from service.database.tables import Base, TokenRow
from service.errors import DatabaseBusy, DatabaseDamaged, DatabaseNewer, KeyReused
from service.spec import parse_spec
from service.status import Status
from service.webhooks.webhook_store import WebhookRow

FIRST = """
CREATE TABLE jobs (
    id VARCHAR(16) NOT NULL, created FLOAT NOT NULL, name VARCHAR(64) NOT NULL, priority INTEGER NOT NULL,
    spec JSON NOT NULL, state VARCHAR(16) NOT NULL, reason VARCHAR NOT NULL, message VARCHAR NOT NULL,
    run_dir VARCHAR NOT NULL, idempotency_key VARCHAR(200), body_hash VARCHAR(64) NOT NULL, finished FLOAT,
    progress JSON, PRIMARY KEY (id), UNIQUE (idempotency_key)
);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE TABLE labels (
    job_id VARCHAR(16) NOT NULL, "key" VARCHAR(64) NOT NULL, value VARCHAR(200) NOT NULL, PRIMARY KEY (job_id, "key"),
    FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE swept (
    job_id VARCHAR(16) NOT NULL, sweep VARCHAR(32) NOT NULL, PRIMARY KEY (job_id),
    FOREIGN KEY(job_id) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE INDEX ix_swept_sweep ON swept (sweep);
"""
"""What the first databases were, before there were versions."""


def test_the_migrations_lead_to_the_tables_that_the_code_has(empty_url: str) -> None:
    Store.open(empty_url).close()
    Store.open(empty_url).close()  # nothing is left to do
    engine = connect(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": empty_url.startswith("postgresql")})
        assert {TokenRow.__tablename__, WebhookRow.__tablename__} <= Base.metadata.tables.keys()
        assert compare_metadata(context, Base.metadata) == []
    engine.dispose()


def test_a_database_without_a_version_keeps_its_jobs_and_their_labels(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    spec = parse_spec({"name": "old", "labels": {"team": "vision"}}).model_dump_json(
        exclude={"retries", "deadline_s", "ttl_s"}
    )
    with sqlite3.connect(file) as db:
        db.executescript(FIRST)
        row = ("abc", 1.0, "old", 3, spec, "QUEUED", "Submitted", "", "/runs/abc", "the key", "hash", None, None)
        db.execute(f"INSERT INTO jobs VALUES ({','.join('?' * 13)})", row)
        db.execute("INSERT INTO labels VALUES ('abc', 'team', 'vision')")
    db.close()
    store = Store.open(f"sqlite:///{file}")
    try:
        (job,) = store.find(Query(labels=(("team", "vision"),)))
        assert (job.id, job.user, job.labels, job.job_spec.retries) == ("abc", "local", {"team": "vision"}, 0)
        new = Submission(parse_spec({}), "the key", "hash")
        assert store.add(new, tmp_path) == (job, False)
        with pytest.raises(KeyReused):
            store.add(Submission(parse_spec({}), "the key", "another"), tmp_path)
        assert store.add(Submission(parse_spec({}), "the key", "another", "somebody"), tmp_path)[1]  # her own key
        store.finish("abc", Status(job.state.FAILED), 2.0, {})
        store.remove("abc")
        assert store.find(Query(labels=(("team", None),))) == []  # the labels went along
    finally:
        store.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs.db"
    with sqlite3.connect(file) as db:
        db.executescript(FIRST)
        db.execute("CREATE INDEX ix_labels_key_value ON labels (value)")  # the name that the last step wants
        before = sorted(db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL"))
    db.close()
    with pytest.raises(Exception, match="ix_labels_key_value"):
        Store.open(f"sqlite:///{file}")
    with sqlite3.connect(file) as db:
        assert sorted(db.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL")) == before
    db.close()


def test_a_later_database_is_refused_with_a_remedy(url: str) -> None:
    Store.open(url).close()
    engine = connect(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(DatabaseNewer, match=r"version 9999.*install the Millrace that wrote it"):
        Store.open(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() == "9999"
    engine.dispose()


@pytest.mark.parametrize("damage", ["cut off", "altered", "something else"])
def test_a_damaged_file_is_refused_and_not_touched(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "jobs.db"
    store = Store.open(f"sqlite:///{path}")
    store.close()
    whole = path.read_bytes()
    altered = whole[:5000] + bytes(reversed(whole[5000:12000])) + whole[12000:]
    damaged = {"cut off": whole[: len(whole) // 2], "altered": altered, "something else": b"no database" * 100}[damage]
    path.write_bytes(damaged)
    with pytest.raises(DatabaseDamaged, match=rf"the database {path} is damaged \(.*\)\. Logs, checkpoints and models"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes() == damaged
    path.write_bytes(whole)
    Store.open(f"sqlite:///{path}").close()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_one_service_works_on_a_shared_database(url: str) -> None:
    first, second = Store.open(url), Store.open(url)
    try:
        first.hold()
        with pytest.raises(DatabaseBusy, match="another service"):
            second.hold()
        first.close()
        second.hold()
    finally:
        second.close()
