"""SQLite on a network file system is refused before there is a file, with what to do."""

from pathlib import Path

import psutil
import pytest

from service.database.job_store import Store
from service.database.network_disk import network_disk
from service.doctor import Health, database
from service.errors import DatabaseRemote


def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Have the system tell of these file systems: what, where, and its type."""
    table = tmp_path / "proc" / "self" / "mounts"
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text("".join(f"{line} rw,relatime 0 0\n" for line in ("/dev/vda / ext4", *lines)))
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path / "proc"))


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "ceph", "lustre", "fuse.sshfs", "fuse.juicefs", "fuse.glusterfs"]
)
def test_network_file_systems_are_known(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts(tmp_path, monkeypatch, f"server:/export {tmp_path}/share {kind}", f"/dev/vdb {tmp_path}/share/disk ext4")
    assert network_disk(tmp_path / "share" / "state" / "millrace.db") == f"{kind}, mounted at {tmp_path}/share"
    assert network_disk(tmp_path / "share" / "disk" / "millrace.db") is None
    assert network_disk(tmp_path / "share-not" / "millrace.db") is None
    (tmp_path / "share").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "share")
    assert network_disk(tmp_path / "link" / "millrace.db") is not None


@pytest.mark.parametrize(
    "kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuse.fuse-overlayfs", "fuse.mergerfs"]
)
def test_disks_of_this_machine_are_not_taken_for_one(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts(tmp_path, monkeypatch, f"server:/export {tmp_path}/share nfs4", f"none {tmp_path}/share {kind}")
    assert network_disk(tmp_path / "share" / "millrace.db") is None  # the last one lies over the other


def test_this_machine(tmp_path: Path) -> None:
    assert network_disk(tmp_path / "millrace.db") is None


def test_the_database_is_refused_there_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "share").mkdir()
    mounts(tmp_path, monkeypatch, f"server:/export {tmp_path}/share nfs4")
    with pytest.raises(DatabaseRemote, match=r"nfs4, mounted at .*set MILLRACE_DATABASE to a PostgreSQL"):
        Store.open(f"sqlite:///{tmp_path}/share/millrace.db")
    assert list((tmp_path / "share").iterdir()) == []
    Store.open(f"sqlite:///{tmp_path}/millrace.db").close()  # as the sentence says
    (found,) = database(tmp_path / "share" / "millrace.db")
    assert (found.health, found.part) == (Health.failed, "store")
    assert "sqlite:////FOLDER/millrace.db" in found.remedy
