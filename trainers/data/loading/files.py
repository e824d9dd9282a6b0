"""The files that loader processes share with their parent: semaphores, and the folder of their sockets.

Python removes them when the parent ends by itself, but the process of an actor is killed. So their names tell whose
they are, and whoever comes next removes those of processes that are gone.
"""

import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, process
from pathlib import Path
from typing import Any

SEMAPHORES = Path("/dev/shm")
SEMAPHORE, FOLDER = "sem.millrace-", "millrace-loaders-"
COMPILED = "millrace-compiled-"
"""Begins the name of the folder where a process has what it has compiled (`model.compile`)."""


_users = 0
"""Loaders of this process that are open."""


def begin_files() -> None:
    """Have the files of the loader processes that this process is about to start bear its number."""
    global _users  # noqa: PLW0603  # a process has one set of such files
    _users += 1
    _settings().update(semprefix=f"/millrace-{os.getpid()}", tempdir=_folder())
    os.makedirs(_folder(), mode=0o700, exist_ok=True)


def end_files() -> None:
    """The loader processes have ended, and their semaphores with them: remove the rest, unless others use it."""
    global _users  # noqa: PLW0603
    _users -= 1
    if not _users:
        gc.collect()  # some of the semaphores' owners are in cycles
        _end_server()
        _settings()["semprefix"] = "/mp"  # Python's own
        _settings().pop("tempdir")
        shutil.rmtree(_folder(), ignore_errors=True)


def remove_forsaken_files() -> None:
    """Remove the files of processes that are gone."""
    temporary = Path(tempfile.gettempdir())
    named = [_named(SEMAPHORES, SEMAPHORE), _named(temporary, FOLDER), _named(temporary, COMPILED)]
    for path, pid in itertools.chain.from_iterable(named):
        if not is_running(pid):
            with suppress(OSError):  # another user's, or removed already
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _end_server() -> None:
    """End the process that loaders are forked from: it would be asked again where its socket lay. It waits for loaders
    that have not ended yet, and nobody should wait for it."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        os.kill(server._forkserver_pid, signal.SIGKILL)
        server._stop()


def is_running(pid: int) -> bool:
    """Whether there is a process with this number, if only one that nobody has waited for yet."""
    return os.path.exists(f"/proc/{pid}")


def _settings() -> dict[str, Any]:
    """What processes inherit in multiprocessing. There is no public way to it."""
    found: dict[str, Any] = process.current_process()._config  # type: ignore[attr-defined]
    return found


def _folder() -> str:
    return os.path.join(tempfile.gettempdir(), f"{FOLDER}{os.getpid()}")


def _named(folder: Path, prefix: str) -> Iterator[tuple[Path, int]]:
    for path in folder.glob(f"{prefix}*"):
        number = path.name.removeprefix(prefix).partition("-")[0]
        if number.isdigit():
            yield path, int(number)
