"""Looks at what a machine has for Millrace, and says how to mend what is amiss. Changes nothing that stays."""

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from service.errors import StorageRefused, StorageUnreachable
from service.storage.storage import Storage

LEAST_FREE_BYTES = 2 * 1024**3
LEAST_SHARED_BYTES = 256 * 1024**2
FOLDERS = {
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
    "cifar10": "cifar-10-batches-py",
    "cifar100": "cifar-100-python",
    "imagenet": "train",
}
"""Where torchvision keeps each set below the root."""


class Health(StrEnum):
    """How something is."""

    ok = "ok"
    warning = "warning"
    failed = "failed"


class Finding(BaseModel):
    """One thing that was looked at."""

    model_config = ConfigDict(frozen=True)

    part: str
    health: Health
    told: str
    """What was found, as a sentence."""
    mend: str = ""
    """What to do about it."""


def good(part: str, told: str) -> Finding:
    """Nothing is amiss."""
    return Finding(part=part, health=Health.ok, told=told)


def doubtful(part: str, told: str, mend: str) -> Finding:
    """It may do, or may not."""
    return Finding(part=part, health=Health.warning, told=told, mend=mend)


def bad(part: str, told: str, mend: str) -> Finding:
    """It will not do."""
    return Finding(part=part, health=Health.failed, told=told, mend=mend)


def packages() -> Iterator[Finding]:
    """The versions of what everything stands on."""
    versions = {}
    for name in ("ray", "torch", "torchvision"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield bad("packages", f"{name} is not installed", f"pip install {name}")
    yield good("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))


def database(path: Path) -> Iterator[Finding]:
    """The list of jobs, read and not written."""
    if not path.exists():
        yield good("store", f"there is none yet; `millrace serve` makes {path}")
        return
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            (told,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            count = connection.execute("SELECT count(*) FROM jobs").fetchone()[0] if told == "ok" else 0
    except sqlite3.Error as error:
        yield bad("store", f"{path} cannot be read: {error}", f"stop the service, and put a backup in place of {path}")
        return
    if told == "ok":
        yield good("store", f"{path} is whole and has {count:,} jobs")
    else:
        mend = f"stop the service, then `sqlite3 {path} .recover | sqlite3 new.db`, and put new.db in its place"
        yield bad("store", f"{path} is damaged: {told}", mend)


def database_server(url: str) -> Iterator[Finding]:
    """The list of jobs in a PostgreSQL."""
    from sqlalchemy import text
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    from service.database import connect

    try:
        shown = make_url(url).render_as_string(hide_password=True)
        engine = connect(url)
        with engine.connect() as connection:
            count = connection.execute(text("SELECT count(*) FROM jobs")).scalar()
        engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        told = str(error).partition("\n")[0]
        yield bad(
            "store", f"MILLRACE_DATABASE does not answer: {told}", "start it, or correct the URL; psycopg is needed"
        )
    else:
        yield good("store", f"{shown} answers and has {count:,} jobs")


def folder(part: str, path: Path, is_private: bool = False) -> Iterator[Finding]:
    """A folder that is written to: whether that is possible, how much room there is, and who else may read it."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        yield bad(part, f"{there} is a file and no folder", "choose another folder, or move the file away")
        return
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        yield bad(
            part, f"{path} cannot be written to: {error.strerror}", f"chown it to {os.getuid()}, or choose another"
        )
        return
    free = shutil.disk_usage(there).free
    if free < LEAST_FREE_BYTES:
        yield doubtful(part, f"{path} has {_gib(free)} left", "make room; checkpoints and logs go there")
        return
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o700
    if is_private and mode & 0o077:
        yield doubtful(part, f"others on this machine may read {path} ({mode:o})", f"chmod 700 {path}")
        return
    yield good(part, f"{path} can be written to and has {_gib(free)} left")


def storage(url: str) -> Iterator[Finding]:
    """Where copies of runs are kept: a small object is written there, read and removed."""
    if not url:
        yield good("storage", "MILLRACE_STORAGE is not set; runs have no copies")
        return
    try:
        found = Storage.open(url)
        found.probe()
    except StorageRefused as error:
        yield bad("storage", str(error), "correct MILLRACE_STORAGE")
    except StorageUnreachable as error:
        mend = "check the URL, the network and the credentials (for S3: AWS_ACCESS_KEY_ID and its like)"
        yield bad("storage", str(error), mend)
    else:
        yield good("storage", f"{found.url} takes what is written and gives it back")


def shared_memory(path: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Where workers of one machine exchange gradients."""
    if not path.is_dir():
        yield doubtful("shared memory", f"there is no {path}", "use `transport: process_group` in specs")
    elif (free := shutil.disk_usage(path).free) < LEAST_SHARED_BYTES:
        mend = f"mount -o remount,size=2g {path}; with Docker: --shm-size 2g"
        yield doubtful("shared memory", f"{path} has {_gib(free)} left", mend)
    else:
        yield good("shared memory", f"{path} has {_gib(free)} left")


def gpus(devices: Path = Path("/dev")) -> Iterator[Finding]:
    """NVIDIA's, and whether torch could use them."""
    found = [path for path in devices.glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()]
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        version = "none"
    if not found:
        yield good("GPUs", "none here; training computes on CPUs")
    elif version.endswith("+cpu"):
        mend = "pip install torch from the index for your CUDA version (pytorch.org/get-started)"
        yield bad("GPUs", f"{len(found)} here, but torch {version} computes on CPUs only", mend)
    else:
        yield good("GPUs", f"{len(found)} here; a job takes them with `workers: {{gpus: 1}}`")


def data(root: Path) -> Iterator[Finding]:
    """Which datasets lie where jobs look for them."""
    if not root.is_dir():
        mend = "set data.root in specs, or MILLRACE_DATA_ROOT here; `data: {name: mnist, download: true}` fetches a set"
        yield doubtful("data", f"there is no {root}; only digits, which needs no files, can be trained on", mend)
        return
    found = [name for name, inside in FOLDERS.items() if (root / inside).is_dir()]
    yield good("data", f"{root} has {', '.join(found) or 'none of the sets with a name'}; digits needs no files")


def config(path: Path | None) -> Iterator[Finding]:
    """The file of settings: nobody else's business when it holds a token."""
    if path is None or not path.exists():
        yield good("settings", f"from the environment alone; {path or 'no file'} is not there")
    elif stat.S_IMODE(path.stat().st_mode) & 0o077 and "token" in path.read_text():
        yield bad("settings", f"{path} holds a token, and others on this machine may read it", f"chmod 600 {path}")
    else:
        yield good("settings", f"from the environment and {path}")


def _gib(count: float) -> str:
    return f"{count / 1024**3:.1f} GiB"
