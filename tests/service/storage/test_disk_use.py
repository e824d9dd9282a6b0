"""How much of the disk the runs of a project hold."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.database.job_store import Store, Submission
from service.projects.project import NewProject
from service.projects.projects import Projects
from service.spec import parse_spec
from service.status import Status
from service.storage.disk_use import SETTLES_S, DiskUse
from tests.service import sqlite
from trainers import State


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(sqlite.create_database(tmp_path / "jobs.db"))
    Projects(opened.engine, opened.writer).create(NewProject(name="vision")).result()
    yield opened
    opened.close()


def add(store: Store, folder: Path, project: str, size: int) -> tuple[str, Path]:
    job, _ = store.add(Submission(parse_spec({"project": project})), folder)
    (job.run_dir / "checkpoints").mkdir(parents=True)
    (job.run_dir / "checkpoints" / "weights").write_bytes(bytes(size))
    return job.id, job.run_dir / "checkpoints" / "weights"


def test_a_job_that_has_ended_is_measured_then_and_once_its_files_have_settled(store: Store, tmp_path: Path) -> None:
    use, now = DiskUse(store), time.time()
    job_id, weights = add(store, tmp_path, "default", 100)
    store.finish(job_id, Status(State.SUCCEEDED), now, {})
    assert use.measure() == {"default": 100}
    weights.write_bytes(bytes(300))
    assert use.measure() == {"default": 100}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: now + SETTLES_S + 1)
        assert use.measure() == {"default": 300}
        weights.write_bytes(bytes(9))
        assert use.measure() == {"default": 300}


def test_every_file_of_every_job_counts_for_its_project(store: Store, tmp_path: Path) -> None:
    use = DiskUse(store)
    assert use.measure() == {}
    first, weights = add(store, tmp_path, "vision", 3000)
    add(store, tmp_path, "vision", 40)
    add(store, tmp_path, "default", 5)
    (weights.parent / "link").symlink_to(weights)
    linked = len(str(weights))
    assert use.measure() == {"vision": 3040 + linked, "default": 5}, "a link is as large as what it says"
    weights.write_bytes(bytes(1000))
    assert use.measure()["vision"] == 1040 + linked
    store.finish(first, Status(State.SUCCEEDED), time.time() - SETTLES_S - 1, {})
    assert use.measure()["vision"] == 1040 + linked
    weights.write_bytes(bytes(9))
    assert use.measure()["vision"] == 1040 + linked, "one that ended long ago is not measured again"
    store.remove(first)
    assert use.measure() == {"vision": 40, "default": 5}
