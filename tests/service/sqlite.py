"""Databases of SQLite with their tables: to migrate a new one takes longer than most of the tests that need one."""

import functools
import tempfile
from pathlib import Path

from service import Store


def create_database(path: Path) -> str:
    """A database without jobs, if there is none yet; returns its URL."""
    if not path.exists():
        path.write_bytes(_tables())
    return f"sqlite:///{path}"


@functools.cache
def _tables() -> bytes:
    """The file of a database that has just been migrated."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "jobs.db")
        Store.open(f"sqlite:///{path}").close()
        return path.read_bytes()
