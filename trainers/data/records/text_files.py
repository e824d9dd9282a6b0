"""Files of text: their bytes where they lie, and their text in pieces."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainers.data.draws import Int64Array
from trainers.errors import DataNotFound, SpecRejected

TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""(N,) of 1, 2 or 4 bytes each."""

CHUNK = 2**22
"""Bytes read at a time where characters become tokens."""

PIECE = 2**16
"""Bytes of a piece of text, about."""

LONGEST = 2**20
"""Bytes after which a piece ends within a line, before a space."""


def text_files(root: str | Path) -> list[Path]:
    """The file, or those of the folder in the order of their names, but for hidden ones. Raises DataNotFound."""
    root = Path(root)
    files = [root]
    if root.is_dir():
        found = sorted(path for path in root.rglob("*") if path.is_file())
        files = [path for path in found if not any(part.startswith(".") for part in path.relative_to(root).parts)]
    if not files or not files[0].is_file():
        raise DataNotFound(f"there is no text at {root.absolute()}; set data.root to a file, or to a folder of files")
    return files


class JoinedBytes:
    """The bytes of several files, one after the other, each mapped where it lies; a span of them all."""

    def __init__(self, files: list[Path]) -> None:
        sizes = [path.stat().st_size for path in files]
        self._maps = [
            np.asarray(np.memmap(path, np.uint8, mode="r")) if size else np.empty(0, np.uint8)
            for path, size in zip(files, sizes, strict=True)
        ]
        self._ends = np.cumsum(sizes)
        self._first, self._length = 0, int(self._ends[-1])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, places: Int64Array | slice) -> Any:
        """Of a slice a shorter span; of places (...,) the bytes there, (...,) uint8."""
        if isinstance(places, slice):
            start, stop, _ = places.indices(self._length)
            span = object.__new__(JoinedBytes)
            span._maps, span._ends, span._first, span._length = (
                self._maps,
                self._ends,
                self._first + start,
                stop - start,
            )
            return span
        flat = (places + self._first).ravel()
        which = np.searchsorted(self._ends, flat, side="right")
        found = np.empty(len(flat), np.uint8)
        for i in np.unique(which).tolist():
            here = which == i
            found[here] = self._maps[i][flat[here] - (self._ends[i] - len(self._maps[i]))]
        return found.reshape(places.shape)


def code_points(files: list[Path]) -> Iterator[npt.NDArray[np.uint32]]:
    """The characters of the files, a chunk at a time. Raises SpecRejected."""
    for path in files:
        decoder = codecs.getincrementaldecoder("utf-8")()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield _points(path, decoder, chunk)
        yield _points(path, decoder, b"", final=True)


def _points(path: Path, decoder: codecs.IncrementalDecoder, chunk: bytes, final: bool = False) -> Any:
    try:
        text = decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        raise _no_text(path, error) from error
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def parts(files: list[Path], test_share: float) -> tuple[list[tuple[Path, int, int]], list[tuple[Path, int, int]]]:
    """Spans of bytes, file, start and end, of the training text and of the test text, which begins at a character."""
    sizes = [path.stat().st_size for path in files]
    cut, before = int(sum(sizes) * (1 - test_share)), 0
    train, test = [], []
    for path, size in zip(files, sizes, strict=True):
        at = _character_at(path, min(max(cut - before, 0), size))
        train.append((path, 0, at))
        test.append((path, at, size))
        before += size
    return [span for span in train if span[1] < span[2]], [span for span in test if span[1] < span[2]]


def _character_at(path: Path, offset: int) -> int:
    """The start of the character that the byte at `offset` belongs to."""
    with path.open("rb") as file:
        file.seek(max(0, offset - 3))
        before = file.read(min(offset, 3) + 1)
    while offset and len(before) > min(offset, 3) and before[-1] & 0xC0 == 0x80 and len(before) > 1:
        before, offset = before[:-1], offset - 1
    return offset


def pieces(path: Path, start: int, end: int) -> Iterator[str]:
    """The text between two bytes, in pieces that end with a line. Raises SpecRejected where it is not in UTF-8."""
    rest = b""
    with path.open("rb") as file:
        file.seek(start)
        while start < end:
            chunk = file.read(min(PIECE, end - start))
            if not chunk:
                raise SpecRejected(f"data: {path} has become shorter while it was read; begin anew")
            start += len(chunk)
            rest += chunk
            at = len(rest) if start == end else _line_end(rest)
            if at:
                try:
                    yield rest[:at].decode()
                except UnicodeDecodeError as error:
                    raise _no_text(path, error) from error
                rest = rest[at:]


def _line_end(text: bytes) -> int:
    """Where a piece may end; 0 where it is to be read on."""
    at = text.rfind(b"\n") + 1
    if at or len(text) < LONGEST:
        return at
    at = max(text.rfind(b" "), 0) or len(text) - 4
    while text[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _no_text(path: Path, error: UnicodeDecodeError) -> SpecRejected:
    return SpecRejected(f"data.tokens: {path} is no text in UTF-8 ({error.reason}); take tokens: bytes")
