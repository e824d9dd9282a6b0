"""One place for copies, of whatever kind: the same rules hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service import doctor
from service.doctor import Health
from service.errors import StorageRefused, StorageUnreachable
from service.storage.object_storage import CHUNK_BYTES, MARK, Storage, shown


def test_what_is_written_is_listed_read_and_removed(storage: Storage) -> None:
    large = bytes(range(256)) * (CHUNK_BYTES // 256) + b"and more"  # more than one part
    storage.write("job/objects/large", [large[:1000], large[1000:]])
    storage.write("job/objects/small", [b"small"])
    storage.write("other/objects/small", [b"other"])
    assert storage.sizes("job") == {"objects/large": len(large), "objects/small": 5}
    assert b"".join(storage.chunks("job/objects/large")) == large
    assert storage.read("job/objects/large", 3) == large[:3]
    storage.write("job/objects/small", [b"replaced"])
    assert storage.read("job/objects/small", 100) == b"replaced"
    storage.remove("job", ["objects/large", "objects/never"])
    assert storage.sizes("job") == {"objects/small": 8}
    assert storage.sizes("nobody") == {}
    with pytest.raises(FileNotFoundError):
        storage.read("job/objects/large", 1)
    with pytest.raises(FileNotFoundError):
        list(storage.chunks("job/objects/large"))


def test_an_object_that_breaks_off_is_not_whole(storage: Storage) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield b"x" * (CHUNK_BYTES + 1)
        yield b"y"
        raise KeyError("before the last byte")

    with pytest.raises(KeyError):
        storage.write("job/objects/a", breaks_off())
    assert storage.sizes("job").get("objects/a", 0) < CHUNK_BYTES + 3
    storage.write("job/objects/a", [b"whole"])
    assert storage.sizes("job") == {"objects/a": 5}


def test_a_storage_without_its_mark_is_no_empty_one(storage: Storage) -> None:
    storage.check_mark()
    storage.fs.rm_file(f"{storage.root}/{MARK}")
    with pytest.raises(StorageUnreachable, match="mounted"):
        storage.sizes("job")


def test_the_doctor_leaves_nothing_behind(storage: Storage, url: str) -> None:
    (found,) = doctor.storage(url)
    assert found.health is Health.ok, found
    assert [Path(name).name for name in storage.fs.find(storage.root)] == [MARK]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("/backup", "write file:///folder"),
        ("backup", "write file:///folder"),
        ("file://", "write file:///folder"),
        ("file:///", "write file:///folder"),
        ("file://backup", "write file:///folder"),
        ("s3://", "s3://bucket/folder"),
        ("simplecache::s3://bucket", "is no URL"),
        ("nothing://there", "nothing"),
        ("gs://bucket/runs", "pip install 'gcsfs'"),
    ],
)
def test_a_url_that_cannot_be_used_says_what_to_change(url: str, told: str) -> None:
    with pytest.raises(StorageRefused, match=told):
        Storage.open(url)
    (found,) = doctor.storage(url)
    assert (found.health, found.remedy) == (Health.failed, "correct MILLRACE_STORAGE, or --storage")


def test_a_storage_that_is_not_there_is_unreachable(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageUnreachable, match="bucket"):
        Storage.open("s3://nobucket/runs").probe()
    with pytest.raises(StorageUnreachable, match="mounted"):
        Storage.open("s3://nobucket/runs").sizes("job")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageUnreachable, match="cannot be"):
        Storage.open(f"file://{tmp_path}/file/runs").probe()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (found,) = doctor.storage(s3)
    assert found.health is Health.failed
    assert "AWS_ACCESS_KEY_ID" in found.remedy


def test_a_password_is_not_shown() -> None:
    assert shown("ftp://user:secret@host/runs") == "ftp://host/runs"
    with pytest.raises(StorageRefused) as refused:
        Storage.open("nothing://user:secret@host/runs")
    assert "secret" not in str(refused.value)
