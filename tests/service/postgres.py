"""A PostgreSQL of the test session's own, from the system's packages, in a temporary folder, on a unix socket."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INSTALLED = Path("/usr/lib/postgresql")
SETTINGS = ("listen_addresses=", "fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=60")
USER = "millrace"


def programs() -> Path | None:
    """The folder with the newest PostgreSQL's programs, if there is one."""
    if (found := shutil.which("initdb")) is not None:
        return Path(found).parent
    folders = [path for path in INSTALLED.glob("*/bin") if (path / "initdb").exists()]
    return max(folders, key=lambda path: float(path.parent.name), default=None)


@contextmanager
def server(bin_dir: Path) -> Iterator[str]:
    """A running server; yields the folder of its socket. It refuses root, so root starts it as somebody else."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-pg-"))
    become: list[str] = []
    if os.geteuid() == 0:
        account = _account()
        os.chown(folder, account.pw_uid, account.pw_gid)
        become = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    data = str(folder / "data")
    setup = [str(bin_dir / "initdb"), "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-locale"]
    subprocess.run([*become, *setup], check=True, capture_output=True, cwd=folder)
    options = [word for setting in SETTINGS for word in ("-c", setting)]
    command = [*become, str(bin_dir / "postgres"), "-D", data, "-k", str(folder), *options]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _wait(process, folder)
        yield str(folder)
    finally:
        process.send_signal(signal.SIGINT)  # at once, without waiting for connections
        process.wait(120)
        shutil.rmtree(folder)


def create_database(folder: str, name: str, template: str = "template1") -> str:
    """A copy of a database, by default of an empty one; returns its URL."""
    import psycopg

    with psycopg.connect(host=folder, user=USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')  # type: ignore[call-overload]
    return f"postgresql://{USER}@/{name}?host={folder}"


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("no account to run PostgreSQL as")


def _wait(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(host=str(folder), user=USER, dbname="postgres").close()
        except psycopg.OperationalError:  # it is not there yet, or still starting up
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not start"
            time.sleep(0.05)
        else:
            return
