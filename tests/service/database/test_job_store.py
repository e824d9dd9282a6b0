"""The store, on real databases of each kind and with many threads."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from service.database import connection
from service.database.job_query import Query
from service.database.job_store import Store, Submission
from service.errors import JobNotFound, KeyReused, TooManyWaiting
from service.ids import new_job_id
from service.spec import parse_spec
from service.status import Status
from trainers.events import State

SPEC = parse_spec({"name": "a", "labels": {"x": "y"}})


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield opened
    opened.close()


def test_ids_sort_by_time_and_fit_everywhere() -> None:
    ids = [new_job_id() for _ in range(2000)]
    assert sum(a > b for a, b in pairwise(ids)) < 20  # two of one microsecond may stand the other way round
    assert all(len(job_id) == 12 and job_id.isalnum() and job_id.islower() for job_id in ids)


def test_many_writers_with_few_keys_make_few_jobs(store: Store, tmp_path: Path) -> None:
    def add(index: int) -> tuple[str, bool]:
        job, is_new = store.add(Submission(SPEC, f"key {index % 5}", "hash"), tmp_path)
        return job.id, is_new

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(add, range(200)))
    assert len({job_id for job_id, _ in answers}) == 5
    assert sum(is_new for _, is_new in answers) == 5
    assert len(store.find(Query(limit=100))) == 5


def test_a_key_with_another_body_is_refused_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    job, _ = store.add(Submission(SPEC, "key", "hash"), tmp_path)
    with pytest.raises(KeyReused):
        store.add(Submission(SPEC, "key", "another hash"), tmp_path)
    assert [found.id for found in store.find(Query())] == [job.id]


def test_writes_that_may_wait_do_so_until_there_are_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BATCH_EVERY_S", 3600.0)
    store.writer.submit(lambda _: None, may_wait=True).result(60)
    written = [store.writer.submit(lambda _: None, may_wait=True) for _ in range(connection.ENOUGH + 1)]
    for one in written:
        one.result(60)


def test_what_fails_among_many_changes_nothing_and_keeps_nobody(store: Store, tmp_path: Path) -> None:
    """All of them wait for the first, and share one transaction."""
    may_go_on = threading.Event()
    store.writer.submit(lambda _: may_go_on.wait(60))

    def half(connection: Connection) -> None:
        connection.execute(text("UPDATE jobs SET name = 'spoilt'"))
        connection.execute(text("INSERT INTO labels (job_id, key, value) VALUES ('nobody', 'a', 'b')"))

    before = [store.submit(Submission(SPEC, f"key {index}", "hash"), tmp_path) for index in range(3)]
    reused = store.submit(Submission(SPEC, "key 1", "another hash"), tmp_path)
    again = store.submit(Submission(SPEC, "key 2", "hash"), tmp_path)
    crowded = store.submit(Submission(SPEC, "key 3", "hash", max_waiting=3), tmp_path)
    spoilt = store.writer.submit(half)
    after = store.submit(Submission(SPEC), tmp_path)
    may_go_on.set()
    with pytest.raises(KeyReused):
        reused.result(60)
    with pytest.raises(TooManyWaiting):
        crowded.result(60)
    with pytest.raises(IntegrityError):
        spoilt.result(60)
    assert [one.result(60).is_new for one in (*before, again, after)] == [True, True, True, False, True]
    assert again.result().job == before[2].result().job
    there = store.find(Query())
    assert {job.id for job in there} == {one.result().job.id for one in (*before, after)}
    assert {job.name for job in there} == {"a"}


def test_a_job_is_durable_once_it_is_answered_for_and_new_once(store: Store, tmp_path: Path) -> None:
    new = Submission(SPEC, "key", "hash", text=SPEC.model_dump_json())
    first, second = (store.submit(new, tmp_path, may_wait=True).result(60) for _ in range(2))
    assert (first.is_new, second.is_new) == (True, False)
    assert store.get(first.job.id) == first.job == second.job  # read by another connection: it is committed
    assert first.job.job_spec == SPEC


def test_of_many_changes_from_one_state_one_wins(store: Store, tmp_path: Path) -> None:
    job, _ = store.add(Submission(SPEC), tmp_path)
    assert store.unfinished_states() == {job.id: State.QUEUED}
    with ThreadPoolExecutor(8) as pool:
        won = list(
            pool.map(lambda to: store.move(job.id, [State.QUEUED], Status(to)), [State.STARTING, State.CANCELLING] * 8)
        )
    assert sum(won) == 1
    assert store.finish(job.id, Status(State.FAILED, "Why", "because"), 5.0, {"seq": 3})
    assert not store.finish(job.id, Status(State.SUCCEEDED, "Completed"), 6.0, {})
    found = store.get(job.id)
    assert (found.state, found.reason, found.message, found.finished) == (State.FAILED, "Why", "because", 5.0)
    assert store.unfinished() == []
    assert store.unfinished_states() == {}


def test_everything_is_there_after_opening_again(store: Store, url: str, tmp_path: Path) -> None:
    job, _ = store.add(Submission(SPEC, "key", "hash"), tmp_path / "runs")
    again = Store.open(url)
    try:
        assert again.get(job.id) == job
        assert job.labels == {"x": "y"}
        assert job.run_dir == tmp_path / "runs" / job.id
        assert again.add(Submission(SPEC, "key", "hash"), tmp_path) == (job, False)
        with pytest.raises(JobNotFound):
            again.get("another")
    finally:
        again.close()
