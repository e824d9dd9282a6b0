"""Restores a run directory from its copy in storage."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from service.errors import CopyDamaged, StorageFull
from service.storage.manifest import Manifest, Piece, numbers
from service.storage.object_storage import Storage
from service.storage.run_files import LOG
from service.storage.upload import newest


def restore(storage: Storage, job_id: str, run_dir: Path) -> bool:
    """Restore a run directory that is gone. Returns False if there is no copy.

    Raises:
        StorageUnreachable: It is not known whether there is a copy.
        CopyDamaged: An object is missing or differs from the manifest. Nothing is left behind.
        StorageFull: The run directory cannot be written here.
    """
    there = storage.sizes(job_id)
    found = numbers(there)
    if not found:
        return False
    manifest = newest(storage, job_id, found)
    if manifest is None:
        raise CopyDamaged(f"the copy of job {job_id} in {storage.url} has no manifest that can be read")
    part = run_dir.with_name(f".{run_dir.name}.restored")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        _fill(part, manifest, _Copy(storage, job_id, there))
        part.rename(run_dir)
    except OSError as error:
        raise StorageFull(f"job {job_id} cannot be brought back to {run_dir}: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return True


class _Copy:
    """The objects of one copy."""

    def __init__(self, storage: Storage, job_id: str, there: dict[str, int]) -> None:
        self.storage = storage
        self.job_id = job_id
        self.there = there

    def write_to(self, file: BinaryIO, piece: Piece) -> None:
        """Append a piece to a file, and check its digest."""
        digest = hashlib.sha256()
        for chunk in self._chunks(piece):
            digest.update(chunk)
            file.write(chunk)
        if digest.hexdigest() != piece.sha256:
            raise self._damaged(piece)

    def _chunks(self, piece: Piece) -> Iterator[bytes]:
        if self.there.get(piece.object) != piece.size_bytes:
            raise self._damaged(piece)
        try:
            left = piece.size_bytes
            for chunk in self.storage.chunks(f"{self.job_id}/{piece.object}"):
                left -= len(chunk)
                if left < 0:  # it has grown; not a byte more is taken than the manifest says
                    raise self._damaged(piece)
                yield chunk
        except FileNotFoundError:
            raise self._damaged(piece) from None

    def _damaged(self, piece: Piece) -> CopyDamaged:
        where = f"{self.storage.url}/{self.job_id}/{piece.object}"
        return CopyDamaged(f"the copy of job {self.job_id} is damaged: {where} is missing, or is not what it was")


def _fill(folder: Path, manifest: Manifest, copy: _Copy) -> None:
    """Write all files of the run. The manifest names nothing but files of a run."""
    wanted = {LOG: manifest.log} if manifest.log else {}
    wanted |= {name: (piece,) for name, piece in manifest.files.items()}
    for name, pieces in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for piece in pieces:
                copy.write_to(file, piece)
            file.flush()
            os.fsync(file.fileno())
