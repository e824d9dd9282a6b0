"""From a run directory to its copy and back: whole, checked, and nothing but the run's own files."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from service.errors import CopyDamaged, StorageFull
from service.storage import upload as uploading
from service.storage.manifest import Manifest
from service.storage.object_storage import Storage
from service.storage.restore import restore
from service.storage.run_files import run_files
from tests.service.storage.copies import contents, download, upload, write_checkpoint, write_log, write_trace

KILLED = """
import os, signal, sys
from pathlib import Path
from service.storage.object_storage import Storage
from tests.service.storage.copies import upload

class Killed(Storage):
    def write(self, name, chunks):
        if name.startswith(sys.argv[3]):
            if sys.argv[4] == "within":
                super().write(name, [b"".join(chunks)[:10]])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(name, chunks)

found = Storage.open(sys.argv[1])
upload(Killed(found.fs, found.root, found.url), Path(sys.argv[2]))
"""


def test_a_run_comes_back_as_it_was(storage: Storage, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write_checkpoint(run_dir, 1000)
    write_log(run_dir, 3)
    assert upload(storage, run_dir)
    write_checkpoint(run_dir, 2000, b"better" * 1000)
    write_log(run_dir, 2)
    (run_dir / "model.safetensors").write_bytes(b"better" * 1000)  # the same bytes are kept once
    for name in ("best", "raw"):
        (run_dir / f"{name}.safetensors").write_bytes(b"better" * 1000)
    (run_dir / "fence").write_text("not for others")
    write_trace(run_dir, 1)
    assert upload(storage, run_dir)
    assert not upload(storage, run_dir)  # nothing has changed since
    expected = {name: data for name, data in contents(run_dir).items() if name != "fence"}
    assert download(storage, tmp_path / "back") == expected
    names = storage.sizes("job")
    assert [name for name in names if name.startswith("manifests/")] == ["manifests/000000000002.json"]
    assert len([name for name in names if name.startswith("objects/")]) == 8  # 2 x 3 files, the trace and the log


def test_what_a_run_removes_leaves_its_copy(storage: Storage, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for examples in (1000, 2000):
        write_checkpoint(run_dir, examples, b"at %d" % examples)
    upload(storage, run_dir)
    write_checkpoint(run_dir, 3000, b"at 3000")
    shutil.rmtree(run_dir / "checkpoints" / "000000001000")
    upload(storage, run_dir)
    assert {name.split("/")[1] for name in download(storage, tmp_path / "back")} == {"000000002000", "000000003000"}
    assert len(storage.sizes("job")) == 7
    shutil.rmtree(run_dir / "checkpoints")  # no run does that: its disk was lost
    upload(storage, run_dir)
    assert {name.split("/")[1] for name in download(storage, tmp_path / "again")} == {"000000002000", "000000003000"}


def test_a_folder_that_is_just_being_removed_leaves_its_copy(storage: Storage, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    for examples in (1000, 2000):
        write_checkpoint(run_dir, examples, b"at %d" % examples)
    upload(storage, run_dir)
    before = download(storage, tmp_path / "before")
    (run_dir / "checkpoints" / "000000002000" / "model.safetensors").unlink()
    upload(storage, run_dir)
    assert download(storage, tmp_path / "back") == before
    shutil.rmtree(run_dir / "checkpoints" / "000000002000")
    upload(storage, run_dir)
    assert download(storage, tmp_path / "again") == before


def test_the_log_is_cut_into_segments_of_whole_lines(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "SEGMENT_BYTES", 100)
    run_dir = tmp_path / "run"
    write_log(run_dir, 25)
    assert upload(storage, run_dir)
    first = set(storage.sizes("job"))
    write_log(run_dir, 2)
    with (run_dir / "events.jsonl").open("a") as file:
        file.write('{"seq": half')
    assert not upload(storage, run_dir, whole=False)  # no segment is finished
    assert upload(storage, run_dir)
    second = set(storage.sizes("job"))
    whole = (run_dir / "events.jsonl").read_bytes().rpartition(b"\n")[0] + b"\n"
    assert download(storage, tmp_path / "back")["events.jsonl"] == whole
    assert len(first & second) == 2  # finished segments are not sent again
    write_log(run_dir, 20)
    assert upload(storage, run_dir, whole=False)
    (run_dir / ".storage.json").unlink()  # another machine, which knows of nothing
    assert upload(storage, run_dir)
    assert download(storage, tmp_path / "again")["events.jsonl"] == (run_dir / "events.jsonl").read_bytes()


@pytest.mark.parametrize("where", ["job/objects", "job/manifests"])
@pytest.mark.parametrize("when", ["before", "within"])
def test_a_kill_at_any_moment_leaves_the_last_whole_run(
    where: str, when: str, folder: Callable[[], Storage], tmp_path: Path
) -> None:
    storage, run_dir = folder(), tmp_path / "run"
    write_checkpoint(run_dir, 1000)
    upload(storage, run_dir)
    before = contents(run_dir)
    write_checkpoint(run_dir, 2000, b"newer")
    command = [sys.executable, "-c", KILLED, storage.url, str(run_dir), where, when]
    killed = subprocess.run(command, check=False, cwd=Path(__file__).parents[3])
    assert killed.returncode == -signal.SIGKILL
    assert set(storage.sizes("job")) != {f"objects/{'0' * 64}"}
    assert download(storage, tmp_path / "back") == before
    assert upload(storage, run_dir)
    assert download(storage, tmp_path / "whole") == contents(run_dir)
    assert len(storage.sizes("job")) == 7  # and nothing is left over


def test_without_any_whole_manifest_nothing_is_brought_back(folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage, run_dir = folder(), tmp_path / "run"
    assert not restore(storage, "job", tmp_path / "back")
    write_checkpoint(run_dir, 1000)
    command = [sys.executable, "-c", KILLED, storage.url, str(run_dir), "job/manifests", "within"]
    subprocess.run(command, check=False, cwd=Path(__file__).parents[3])
    with pytest.raises(CopyDamaged, match="no manifest"):
        restore(storage, "job", tmp_path / "back")
    assert upload(storage, run_dir)
    assert download(storage, tmp_path / "back") == contents(run_dir)


@pytest.mark.parametrize("harm", ["changed", "longer", "shorter", "missing"])
def test_a_damaged_copy_is_not_brought_back(harm: str, folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage = folder()
    write_checkpoint(tmp_path / "run", 1000)
    upload(storage, tmp_path / "run")
    name = max((name for name in storage.sizes("job") if name.startswith("objects/")), key=storage.sizes("job").get)  # type: ignore[arg-type]
    data = storage.read(f"job/{name}", 1 << 20)
    if harm == "missing":
        storage.remove("job", [name])
    else:
        spoilt = {"changed": b"X" + data[1:], "longer": data + b"X", "shorter": data[:-1]}[harm]
        storage.write(f"job/{name}", [spoilt])
    with pytest.raises(CopyDamaged, match=name):
        restore(storage, "job", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert [path.name for path in tmp_path.iterdir() if "restored" in path.name] == []


@pytest.mark.parametrize(
    "name",
    [
        "../escaped",
        "checkpoints/../../escaped",
        "/tmp/escaped",
        "checkpoints/000000001000/../../fence",
        "checkpoints/000000001000/.hidden",
        "checkpoints/000000001000/model.safetensors\n",
        "checkpoints/000000001000/deep/er",
        "checkpoints/first/model.safetensors",
        "events.jsonl",
        "fence",
        "",
    ],
)
def test_names_from_storage_lead_nowhere_else(name: str, folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage = folder()
    write_checkpoint(tmp_path / "run", 1000)
    upload(storage, tmp_path / "run")
    manifest = json.loads(storage.read("job/manifests/000000000001.json", 1 << 20))
    manifest["files"][name] = next(iter(manifest["files"].values()))
    storage.write("job/manifests/000000000001.json", [json.dumps(manifest).encode()])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CopyDamaged):
        restore(storage, "job", tmp_path / "runs" / "back")
    assert [path for path in tmp_path.rglob("*") if path not in before] in ([], [tmp_path / "runs"])


@pytest.mark.parametrize("sha256", ["../../secret", "/etc/passwd", "A" * 64, "0" * 63])
def test_objects_are_named_by_digests_alone(sha256: str, folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage = folder()
    (tmp_path / "secret").write_bytes(b"key")
    manifest = {"format": 1, "log": [], "files": {"model.safetensors": {"size_bytes": 3, "sha256": sha256}}}
    with pytest.raises(ValidationError):
        Manifest.model_validate(manifest)
    storage.write("job/manifests/000000000001.json", [json.dumps(manifest).encode()])
    with pytest.raises(CopyDamaged):
        restore(storage, "job", tmp_path / "back")


def test_links_are_neither_copied_nor_followed(folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage, run_dir = folder(), tmp_path / "run"
    checkpoint = write_checkpoint(run_dir, 1000)
    expected = contents(run_dir)
    (tmp_path / "secret").write_bytes(b"key")
    (checkpoint / "link").symlink_to(tmp_path / "secret")
    (run_dir / "model.safetensors").symlink_to(tmp_path / "secret")
    (run_dir / "events.jsonl").symlink_to(tmp_path / "secret")
    (run_dir / "checkpoints" / "000000002000").symlink_to(checkpoint)
    os.mkfifo(checkpoint / "pipe")
    assert set(run_files(run_dir).files) == set(expected)
    upload(storage, run_dir)
    assert download(storage, tmp_path / "back") == expected
    object_name = next(name for name in storage.sizes("job") if name.startswith("objects/"))
    path = tmp_path / "copies" / "job" / object_name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CopyDamaged):
        restore(storage, "job", tmp_path / "again")


def test_a_checkpoint_that_is_replaced_while_it_is_copied_is_not_mixed(
    folder: Callable[[], Storage], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    checkpoint = write_checkpoint(run_dir, 1000, b"old")

    class Replacing(Storage):
        def write(self, name: str, chunks: object) -> None:
            super().write(name, chunks)  # type: ignore[arg-type]
            if checkpoint.exists() and (checkpoint / "model.safetensors").read_bytes() == b"old":
                shutil.rmtree(checkpoint)
                write_checkpoint(run_dir, 1000, b"new")

    found = folder()
    storage = Replacing(found.fs, found.root, found.url)
    with pytest.raises(FileNotFoundError):
        upload(storage, run_dir)
    assert not any(name.startswith("manifests/") for name in storage.sizes("job"))
    upload(storage, run_dir)
    assert download(storage, tmp_path / "back") == contents(run_dir)
    assert len(storage.sizes("job")) == 4


def test_a_run_that_has_begun_anew_is_not_overwritten(folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage = folder()
    write_checkpoint(tmp_path / "run", 1000)
    upload(storage, tmp_path / "run")
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "events.jsonl").write_text("new\n")
    with pytest.raises(StorageFull, match="not empty"):
        restore(storage, "job", tmp_path / "back")
    assert contents(tmp_path / "back") == {"events.jsonl": b"new\n"}


def test_an_object_without_end_does_not_fill_the_disk(folder: Callable[[], Storage], tmp_path: Path) -> None:
    class Endless(Storage):
        def chunks(self, name: str) -> Iterator[bytes]:
            for count in range(1000):
                assert count < 10, "it reads more than the manifest says"
                yield b"weights"

    found = folder()
    write_checkpoint(tmp_path / "run", 1000)
    upload(found, tmp_path / "run")
    with pytest.raises(CopyDamaged):
        restore(Endless(found.fs, found.root, found.url), "job", tmp_path / "back")


def test_a_disk_that_is_full_gets_nothing_rather_than_half(
    folder: Callable[[], Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = folder()
    write_checkpoint(tmp_path / "run", 1000)
    upload(storage, tmp_path / "run")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageFull, match="No space left"):
            restore(storage, "job", tmp_path / "back")
    assert not (tmp_path / "back").exists()
    assert download(storage, tmp_path / "back") == contents(tmp_path / "run")


def test_another_storage_in_the_same_place_gets_everything(folder: Callable[[], Storage], tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write_checkpoint(run_dir, 1000)
    assert upload(folder(), run_dir)
    assert not upload(folder(), run_dir)
    shutil.rmtree(tmp_path / "copies")
    assert upload(folder(), run_dir)
    assert download(folder(), tmp_path / "back") == contents(run_dir)


def test_what_has_left_the_storage_is_not_promised(folder: Callable[[], Storage], tmp_path: Path) -> None:
    storage, run_dir = folder(), tmp_path / "run"
    for examples in (1000, 2000):
        write_checkpoint(run_dir, examples, b"at %d" % examples)
    upload(storage, run_dir)
    expected = {name: data for name, data in contents(run_dir).items() if "000000001000" in name}
    lost = hashlib.sha256(b"at 2000").hexdigest()
    storage.remove("job", [f"objects/{lost}"])
    shutil.rmtree(run_dir / "checkpoints")
    upload(storage, run_dir)
    assert download(storage, tmp_path / "back") == expected
