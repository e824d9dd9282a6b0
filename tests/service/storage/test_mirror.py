"""The thread that keeps copies: it never stands in anybody's way, says when it cannot, and forgets nothing."""

import contextlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from service.errors import StorageUnreachable
from service.storage import mirror as mirroring
from service.storage.mirror import REMOVED, Mirror
from service.storage.object_storage import Storage
from service.storage.restore import restore
from tests.service.storage.copies import contents, download, write_checkpoint, write_log


class FailingFolder(LocalFileSystem):
    """A folder that answers only while it may."""

    is_down = False
    refused = 0

    def find(self, *arguments: Any, **options: Any) -> Any:
        self._answer()
        return super().find(*arguments, **options)

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        self._answer()
        return super().cat_file(*arguments, **options)

    def _open(self, *arguments: Any, **options: Any) -> Any:
        self._answer()
        return super()._open(*arguments, **options)

    def _answer(self) -> None:
        if self.is_down:
            self.refused += 1
            raise ConnectionError("no route to host")


@pytest.fixture
def failing() -> FailingFolder:
    return FailingFolder(skip_instance_cache=True)


@pytest.fixture
def storage(failing: FailingFolder, tmp_path: Path) -> Storage:
    return Storage(failing, f"{tmp_path}/copies", "file:///copies")


@pytest.fixture
def start(storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mirroring, "RETRY_S", (0.01, 0.02))
    started: list[Mirror] = []

    def begin(live: dict[str, Path] | None = None) -> Mirror:
        mirror = Mirror(storage, tmp_path / "runs", look_s=0.02)
        mirror.start(lambda: live or {})
        started.append(mirror)
        return mirror

    yield begin
    for mirror in started:
        mirror.close()
        assert mirror.thread is not None
        assert not mirror.thread.is_alive()


def eventually(holds: Callable[[], bool], within_s: float = 120.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def names(storage: Storage, job_id: str = "job") -> dict[str, int]:
    """What a copy has; nothing while the storage is not yet in use."""
    with contextlib.suppress(StorageUnreachable):
        return storage.sizes(job_id)
    return {}


def is_copied(mirror: Mirror, job_id: str = "job") -> bool:
    return mirror.describe(job_id) == f"copied to file:///copies/{job_id}"


def test_what_live_runs_finish_is_copied_by_itself(start: Any, storage: Storage, tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "job"
    write_log(run_dir, 1)
    mirror = start({"job": run_dir})
    eventually(lambda: "manifests/000000000001.json" in names(storage))
    write_checkpoint(run_dir, 1000)
    eventually(lambda: "manifests/000000000002.json" in names(storage))
    eventually(lambda: is_copied(mirror))  # a file of this storage has its name before it has all that is in it
    assert download(storage, tmp_path / "back") == contents(run_dir)


def test_a_storage_that_does_not_answer_is_told_of_and_tried_again(
    start: Any, storage: Storage, failing: FailingFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.storage.mirror")
    failing.is_down = True
    run_dir = tmp_path / "runs" / "job"
    write_checkpoint(run_dir, 1000)
    mirror = start({"job": run_dir})
    eventually(lambda: bool(mirror.trouble))
    assert mirror.describe("job") == (
        "waits: file:///copies cannot be reached: no route to host; training goes on, and the copy follows"
    )
    for examples in (2000, 3000, 4000):  # what comes meanwhile waits as one name, however much it is
        write_checkpoint(run_dir, examples)
        mirror.look("job", run_dir)
    assert mirror.num_due == 1
    with pytest.raises(StorageUnreachable):
        mirror.restore("another", tmp_path / "runs" / "another")
    failing.is_down = False
    eventually(lambda: is_copied(mirror))
    assert download(storage, tmp_path / "back") == contents(run_dir)
    told = [record.getMessage() for record in caplog.records]
    assert [line.split(";")[0] for line in told] == [
        "file:///copies cannot be reached: no route to host", "file:///copies answers again",
    ]  # fmt: skip


def test_a_storage_that_fails_between_two_objects_gets_the_rest_later(
    start: Any,
    storage: Storage,
    failing: FailingFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "service.storage.mirror")
    write = Storage.write
    left = [2]

    def failing_write(self: Storage, name: str, chunks: Any) -> None:
        if name.startswith("job/"):
            left[0] -= 1
            failing.is_down = failing.is_down or left[0] == 0
        write(self, name, chunks)

    monkeypatch.setattr(Storage, "write", failing_write)
    write_checkpoint(tmp_path / "runs" / "job", 1000)
    mirror = start()
    mirror.look("job", tmp_path / "runs" / "job")
    eventually(lambda: failing.refused >= 5)
    assert mirror.trouble
    failing.is_down = False
    eventually(lambda: is_copied(mirror))
    assert download(storage, tmp_path / "back") == contents(tmp_path / "runs" / "job")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]  # once each, however often it tried


def test_one_run_that_cannot_be_read_holds_up_no_other(start: Any, storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "bad").write_text("a file and no folder")
    write_checkpoint(tmp_path / "runs" / "good", 1000)
    mirror = start()
    for name in ("bad", "gone", "good"):
        mirror.look(name, tmp_path / "runs" / name)
    eventually(lambda: mirror.num_due == 0 and is_copied(mirror, "good"))
    assert mirror.describe("bad").startswith("cannot be copied: [Errno 20] Not a directory")
    assert download_of(storage, "good", tmp_path) == contents(tmp_path / "runs" / "good")


def test_a_copy_that_is_to_go_goes_when_the_storage_answers_whoever_serves_then(
    start: Any, storage: Storage, failing: FailingFolder, tmp_path: Path
) -> None:
    run_dir = tmp_path / "runs" / "job"
    write_checkpoint(run_dir, 1000)
    first = start()
    first.look("job", run_dir)
    eventually(lambda: is_copied(first) and bool(names(storage)))
    failing.is_down = True
    first.forget("job")
    first.close()
    failing.is_down = False
    assert not first.restore("job", tmp_path / "runs" / "again")  # it is as good as gone
    start()
    eventually(lambda: not names(storage))
    eventually(lambda: not list((tmp_path / "runs" / REMOVED).iterdir()))


def test_a_folder_that_is_no_longer_mounted_is_no_empty_storage(start: Any, storage: Storage, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "runs" / "job", 1000)
    mirror = start()
    mirror.look("job", tmp_path / "runs" / "job")
    eventually(lambda: is_copied(mirror) and bool(names(storage)))
    (tmp_path / "copies").rename(tmp_path / "elsewhere")
    (tmp_path / "copies").mkdir()
    with pytest.raises(StorageUnreachable, match="mounted"):
        mirror.restore("job", tmp_path / "runs" / "lost")
    write_checkpoint(tmp_path / "runs" / "job", 2000)
    mirror.look("job", tmp_path / "runs" / "job")
    eventually(lambda: "mounted" in mirror.trouble)
    assert not list((tmp_path / "copies").iterdir())
    (tmp_path / "copies").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "copies")
    eventually(lambda: is_copied(mirror))
    assert download(storage, tmp_path / "back") == contents(tmp_path / "runs" / "job")


def download_of(storage: Storage, job_id: str, tmp_path: Path) -> dict[str, bytes]:
    assert restore(storage, job_id, tmp_path / f"back of {job_id}")
    return contents(tmp_path / f"back of {job_id}")
