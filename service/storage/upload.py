"""Copies a run directory to storage."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from service.storage.checkpoints import chunks
from service.storage.manifest import LIMIT_BYTES, Manifest, Piece, is_of_checkpoint, numbered, numbers, ours
from service.storage.object_storage import Storage
from service.storage.run_files import LOG, RunFiles, Stamp, open_run_file, run_files

SEGMENT_BYTES = 1 << 20
"""The least size of a segment of the log, which ends with a line. The last segment may be shorter."""
NOTE = ".storage.json"


class Note(BaseModel):
    """What a machine has noted in the run directory about the run's copy."""

    storage: str
    """The identity of the storage."""
    manifest: Manifest
    stamps: dict[str, Stamp]
    """The stamps of the files when they were copied."""

    @property
    def log_bytes(self) -> int:
        """How much of the log is copied."""
        return sum(piece.size_bytes for piece in self.manifest.log)


class Stopped(Exception):
    """The service stops; the next one copies the rest."""


class Upload:
    """Sends the difference between one run and its copy."""

    def __init__(self, storage: Storage, job_id: str, run_dir: Path, is_stopping: Callable[[], bool]) -> None:
        self.storage = storage
        self.job_id = job_id
        self.run_dir = run_dir
        self.is_stopping = is_stopping
        self.there: dict[str, int] = {}  # in the copy

    def run(self, with_tail: bool) -> bool:
        """Bring the copy up to date. Returns whether there was anything to do.

        with_tail: Also if the log has grown by less than a segment.

        Raises:
            StorageUnreachable: Nothing is lost; the copy is as it was.
            FileNotFoundError: The run has just replaced or removed a file.
            Stopped: The service stops in the middle.
        """
        now = run_files(self.run_dir)
        note = self._noted()
        if note is not None and not _differs(now, note, with_tail):
            return False
        self.there = self.storage.sizes(self.job_id)
        found = numbers(self.there)
        before = note.manifest if note is not None else newest(self.storage, self.job_id, found) or Manifest()
        same = set() if note is None else {name for name, stamp in note.stamps.items() if now.files.get(name) == stamp}
        files = {
            name: self._copied(name, stamp, before.files[name] if name in same else None)
            for name, stamp in now.files.items()
        }
        log = tuple(self._log(before.log if note is not None else ()))
        manifest = Manifest(log=log, files=self._kept(before, files) | files)
        number = found[0] + 1 if found else 1
        self._write(numbered(number), manifest.model_dump_json().encode())
        self._remove_others(manifest, number)
        self._take_note(Note(storage=self.storage.identity, manifest=manifest, stamps=now.files))
        return True

    def _copied(self, name: str, stamp: Stamp, known: Piece | None) -> Piece:
        """A file as a piece, which is in the copy afterwards."""
        piece = known or Piece.of_file(open_run_file(self.run_dir, name, stamp))
        if self.there.get(piece.object) != piece.size_bytes:
            self.storage.write(f"{self.job_id}/{piece.object}", self._checked(name, stamp, piece))
            self.there[piece.object] = piece.size_bytes
        return piece

    def _checked(self, name: str, stamp: Stamp, piece: Piece) -> Iterator[bytes]:
        """The bytes of a file. Raises FileNotFoundError if they are not those that the piece was made from."""
        digest = hashlib.sha256()
        for chunk in chunks(open_run_file(self.run_dir, name, stamp)):
            if self.is_stopping():
                raise Stopped
            digest.update(chunk)
            yield chunk
        if digest.hexdigest() != piece.sha256:
            raise FileNotFoundError(f"{name} has changed while it was copied")

    def _log(self, before: tuple[Piece, ...]) -> Iterator[Piece]:
        """The segments of the log: finished ones stay as they are, then the rest up to the last complete line."""
        begin = 0
        try:
            file = open_run_file(self.run_dir, LOG)
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            for piece in before:
                if (
                    piece.size_bytes < SEGMENT_BYTES
                    or begin + piece.size_bytes > size
                    or piece.object not in self.there
                ):
                    break
                begin += piece.size_bytes
                yield piece
            file.seek(begin)
            while segment := file.read(SEGMENT_BYTES):
                segment += file.readline() if len(segment) == SEGMENT_BYTES and segment[-1:] != b"\n" else b""
                segment = segment[: segment.rfind(b"\n") + 1]  # a line may be half-written
                if not segment:
                    return
                piece = Piece.of(segment)
                if self.there.get(piece.object) != piece.size_bytes:
                    self._write(piece.object, segment)
                yield piece

    def _kept(self, before: Manifest, files: dict[str, Piece]) -> dict[str, Piece]:
        """The files of checkpoints that only the copy has, and that are kept: not older than the run's newest.

        A run removes a checkpoint only when it has newer ones. If it has none, its disk was lost, or somebody is just
        removing its folder, file by file.
        """
        last = max(Manifest(files=files).steps, default="")
        of_checkpoints = {name: piece for name, piece in before.files.items() if is_of_checkpoint(name)}
        found = {name: piece for name, piece in of_checkpoints.items() if name.split("/")[1] >= last}
        lost = {name.split("/")[1] for name, piece in found.items() if self.there.get(piece.object) != piece.size_bytes}
        return {name: piece for name, piece in found.items() if name.split("/")[1] not in lost}

    def _write(self, name: str, data: bytes) -> None:
        if self.is_stopping():
            raise Stopped
        self.storage.write(f"{self.job_id}/{name}", [data])
        self.there[name] = len(data)

    def _remove_others(self, manifest: Manifest, number: int) -> None:
        """Remove what the manifest does not name, older manifests first: a readable manifest is always complete."""
        named = {piece.object for piece in manifest.pieces} | {numbered(number)}
        self.storage.remove(self.job_id, ours(name for name in self.there if name not in named))

    def _noted(self) -> Note | None:
        try:
            note = Note.model_validate_json((self.run_dir / NOTE).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return note if note.storage == self.storage.identity else None

    def _take_note(self, note: Note) -> None:
        part = self.run_dir / f"{NOTE}.part"
        part.write_text(note.model_dump_json())
        part.rename(self.run_dir / NOTE)


def newest(storage: Storage, job_id: str, found: list[int]) -> Manifest | None:
    """The newest readable manifest of a copy. found: The numbers of its manifests, newest first."""
    for number in found:
        try:
            return Manifest.model_validate_json(storage.read(f"{job_id}/{numbered(number)}", LIMIT_BYTES))
        except (FileNotFoundError, ValidationError):  # half-written, or replaced by a newer one meanwhile
            continue
    return None


def _differs(now: RunFiles, note: Note, with_tail: bool) -> bool:
    """Whether the copy is out of date."""
    grown = now.log_bytes - note.log_bytes
    return now.files != note.stamps or grown < 0 or grown >= (1 if with_tail else SEGMENT_BYTES)
