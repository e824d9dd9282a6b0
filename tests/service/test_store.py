"""The store, with real SQLite files and many threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from service.errors import JobNotFound, KeyReused
from service.spec import parse_spec
from service.store import Query, Store, new_job_id
from trainers.events import State

SPEC = parse_spec({"name": "a", "labels": {"x": "y"}})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield opened
    opened.close()


def test_ids_sort_by_time_and_fit_everywhere() -> None:
    ids = [new_job_id() for _ in range(2000)]
    assert sum(a > b for a, b in pairwise(ids)) < 20  # two of one microsecond may stand the other way round
    assert all(len(job_id) == 12 and job_id.isalnum() and job_id.islower() for job_id in ids)


def test_many_writers_with_few_keys_make_few_jobs(store: Store, tmp_path: Path) -> None:
    def add(index: int) -> tuple[str, bool]:
        job, is_new = store.add(SPEC, tmp_path, f"key {index % 5}", "hash")
        return job.id, is_new

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(add, range(200)))
    assert len({job_id for job_id, _ in answers}) == 5
    assert sum(is_new for _, is_new in answers) == 5
    assert len(store.find(Query(limit=100))) == 5


def test_a_key_with_another_body_is_refused_and_changes_nothing(store: Store, tmp_path: Path) -> None:
    job, _ = store.add(SPEC, tmp_path, "key", "hash")
    with pytest.raises(KeyReused):
        store.add(SPEC, tmp_path, "key", "another hash")
    assert [found.id for found in store.find(Query())] == [job.id]


def test_of_many_changes_from_one_state_one_wins(store: Store, tmp_path: Path) -> None:
    job, _ = store.add(SPEC, tmp_path, None, "hash")
    with ThreadPoolExecutor(8) as pool:
        won = list(
            pool.map(
                lambda to: store.move(job.id, [State.QUEUED], to, "r", "m"), [State.STARTING, State.CANCELLING] * 8
            )
        )
    assert sum(won) == 1
    assert store.finish(job.id, (State.FAILED, "Why", "because"), 5.0, {"seq": 3})
    assert not store.finish(job.id, (State.SUCCEEDED, "Completed", ""), 6.0, {})
    found = store.get(job.id)
    assert (found.state, found.reason, found.message, found.finished) == (State.FAILED, "Why", "because", 5.0)
    assert store.unfinished() == []


def test_everything_is_there_after_opening_again(store: Store, tmp_path: Path) -> None:
    job, _ = store.add(SPEC, tmp_path / "runs", "key", "hash")
    again = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    try:
        assert again.get(job.id) == job
        assert job.labels == {"x": "y"}
        assert job.run_dir == tmp_path / "runs" / job.id
        assert again.add(SPEC, tmp_path, "key", "hash") == (job, False)
        with pytest.raises(JobNotFound):
            again.get("another")
    finally:
        again.close()
