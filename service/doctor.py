"""Checks what a machine has for Millrace, and says how to repair what is wrong. It leaves nothing changed."""

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from service.database.connection import connect
from service.database.network_disk import network_disk
from service.errors import StorageRefused, StorageUnreachable
from service.storage.object_storage import Storage

LEAST_FREE_BYTES = 2 * 1024**3
LEAST_SHARED_BYTES = 256 * 1024**2
FOLDERS = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "imagenet": "train",
}
"""The folder below the root in which torchvision keeps each dataset."""


class Health(StrEnum):
    """The result of a check."""

    ok = "ok"
    warning = "warning"
    failed = "failed"


class Finding(BaseModel):
    """One check and its result."""

    model_config = ConfigDict(frozen=True, serialize_by_alias=True, validate_by_name=True)

    part: str
    health: Health
    message: str = Field(alias="told")
    """What was found, as a sentence."""
    remedy: str = Field(default="", alias="mend")
    """What to do about it."""

    @classmethod
    def good(cls, part: str, message: str) -> Self:
        """Nothing is wrong."""
        return cls(part=part, health=Health.ok, message=message)

    @classmethod
    def doubtful(cls, part: str, message: str, remedy: str) -> Self:
        """It may be enough, or may not."""
        return cls(part=part, health=Health.warning, message=message, remedy=remedy)

    @classmethod
    def bad(cls, part: str, message: str, remedy: str) -> Self:
        """It cannot work."""
        return cls(part=part, health=Health.failed, message=message, remedy=remedy)


@dataclass(frozen=True)
class Installation:
    """Where one installation keeps what is checked."""

    config: Path | None
    """The settings file."""
    state_dir: Path
    runs_dir: Path
    data_root: Path
    database: str = ""
    """A PostgreSQL's URL; empty: SQLite in `state_dir`."""
    storage: str = ""
    """The URL at which copies of runs are kept."""


def examine(installation: Installation) -> Iterator[Finding]:
    """Check everything that needs neither Ray nor a running service."""
    yield from packages()
    yield from config(installation.config)
    yield from folder("state", installation.state_dir, is_private=True)
    yield from folder("runs", installation.runs_dir)
    if installation.database:
        yield from database_server(installation.database)
    else:
        yield from database(installation.state_dir / "millrace.db")
    yield from storage(installation.storage)
    yield from shared_memory()
    yield from gpus()
    yield from data(installation.data_root)


def packages() -> Iterator[Finding]:
    """The versions of the packages that everything is built on."""
    versions = {}
    for name in ("ray", "torch", "torchvision"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding.bad("packages", f"{name} is not installed", f"pip install {name}")
    yield Finding.good("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))


def database(path: Path) -> Iterator[Finding]:
    """The SQLite database of jobs, opened for reading only."""
    if (disk := network_disk(path)) is not None:
        remedy = "set MILLRACE_DATABASE to a PostgreSQL, or to sqlite:////FOLDER/millrace.db on a disk of this machine"
        yield Finding.bad("store", f"{path} lies on a network file system ({disk}), where SQLite may lose jobs", remedy)
        return
    if not path.exists():
        yield Finding.good("store", f"there is none yet; `millrace serve` makes {path}")
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            count = connection.execute("SELECT count(*) FROM jobs").fetchone()[0] if verdict == "ok" else 0
    except sqlite3.Error as error:
        yield Finding.bad(
            "store", f"{path} cannot be read: {error}", f"stop the service, and put a backup in place of {path}"
        )
        return
    if verdict == "ok":
        yield Finding.good("store", f"{path} is whole and has {count:,} jobs")
    else:
        remedy = f"stop the service, then `sqlite3 {path} .recover | sqlite3 new.db`, and put new.db in its place"
        yield Finding.bad("store", f"{path} is damaged: {verdict}", remedy)


def database_server(url: str) -> Iterator[Finding]:
    """The PostgreSQL database of jobs."""
    try:
        shown = make_url(url).render_as_string(hide_password=True)
        engine = connect(url)
        with engine.connect() as connection:
            count = connection.execute(text("SELECT count(*) FROM jobs")).scalar()
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        cause = str(error).partition("\n")[0]
        yield Finding.bad(
            "store", f"MILLRACE_DATABASE does not answer: {cause}", "start it, or correct the URL; psycopg is needed"
        )
    else:
        yield Finding.good("store", f"{shown} answers and has {count:,} jobs")


def folder(part: str, path: Path, is_private: bool = False) -> Iterator[Finding]:
    """Whether a folder can be written to, how much space it has, and who else may read it."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        yield Finding.bad(part, f"{there} is a file and no folder", "choose another folder, or move the file away")
        return
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield Finding.bad(
            part, f"{path} cannot be written to: {error.strerror}", f"chown it to {os.getuid()}, or choose another"
        )
        return
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        yield Finding.doubtful(part, f"{path} has {_gib(free)} left", "make room; checkpoints and logs go there")
        return
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o700
    if is_private and mode & 0o077:
        yield Finding.doubtful(part, f"others on this machine may read {path} ({mode:o})", f"chmod 700 {path}")
        return
    yield Finding.good(part, f"{path} can be written to and has {_gib(free)} left")


def storage(url: str) -> Iterator[Finding]:
    """The storage of copies of runs: a small object is written there, read and removed."""
    if not url:
        yield Finding.good("storage", "there is neither MILLRACE_STORAGE nor --storage; runs have no copies")
        return
    try:
        found = Storage.open(url)
        found.probe()
    except StorageRefused as error:
        yield Finding.bad("storage", str(error), "correct MILLRACE_STORAGE, or --storage")
    except StorageUnreachable as error:
        remedy = "check the URL, the network and the credentials (for S3: AWS_ACCESS_KEY_ID and its like)"
        yield Finding.bad("storage", str(error), remedy)
    else:
        yield Finding.good("storage", f"{found.url} takes what is written and gives it back")


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """The folder through which workers of one machine exchange gradients."""
    if not path.is_dir():
        yield Finding.doubtful("shared memory", f"there is no {path}", "use `transport: process_group` in specs")
    elif (free := shutil.disk_usage(path).free) < LEAST_SHARED_BYTES:
        remedy = f"mount -o remount,size=2g {path}; with Docker: --shm-size 2g"
        yield Finding.doubtful("shared memory", f"{path} has {_gib(free)} left", remedy)
    else:
        yield Finding.good("shared memory", f"{path} has {_gib(free)} left")


def gpus(devices: Path = Path("/dev")) -> Iterator[Finding]:
    """NVIDIA GPUs, and whether torch can use them."""
    found = [path for path in devices.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "none"
    if not found:
        yield Finding.good("GPUs", "none here; training computes on CPUs")
    elif version.endswith("+cpu"):
        remedy = "pip install torch from the index for your CUDA version (pytorch.org/get-started)"
        yield Finding.bad("GPUs", f"{len(found)} here, but torch {version} computes on CPUs only", remedy)
    else:
        yield Finding.good("GPUs", f"{len(found)} here; a job takes them with `workers: {{gpus: 1}}`")


def data(root: Path) -> Iterator[Finding]:
    """Which datasets are in the folder where jobs look for them."""
    if not root.is_dir():
        remedy = (
            "set data.root in specs, or MILLRACE_DATA_ROOT here; `data: {name: mnist, download: true}` fetches a set"
        )
        yield Finding.doubtful(
            "data", f"there is no {root}; only digits, which needs no files, can be trained on", remedy
        )
        return
    found = [name for name, inside in FOLDERS.items() if (root / inside).is_dir()]
    yield Finding.good(
        "data", f"{root} has {', '.join(found) or 'none of the sets with a name'}; digits needs no files"
    )


def config(path: Path | None) -> Iterator[Finding]:
    """The settings file, which nobody else may read when it holds a token."""
    if path is None or not path.exists():
        yield Finding.good("settings", f"from the environment alone; {path or 'no file'} is not there")
    elif stat.S_IMODE(path.stat().st_mode) & 0o077 and "token" in path.read_text():
        yield Finding.bad(
            "settings", f"{path} holds a token, and others on this machine may read it", f"chmod 600 {path}"
        )
    else:
        yield Finding.good("settings", f"from the environment and {path}")


def _gib(count: float) -> str:
    return f"{count / 1024**3:.1f} GiB"
