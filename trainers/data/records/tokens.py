"""Text as tokens in a file: characters, or the tokens of a `tokenizers` file, numbered once a node and mapped."""

import hashlib
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainers.data.config import DataSpec
from trainers.data.node_lock import Note
from trainers.data.records.extras import need
from trainers.data.records.kept import check_room, digest_of, kept, on_disk
from trainers.data.records.text_files import TokenArray, code_points, parts, pieces, text_files
from trainers.errors import DataNotFound, DiskFull, SpecRejected

AT_ONCE = 64
"""Pieces that a tokenizer gets at a time; it works on them in threads."""

NOTE_EVERY_S = 1.0


@dataclass(frozen=True)
class Numbering:
    """What the numbers of a text mean."""

    vocabulary: int
    first: int
    """Tokens for training; the rest are the test set."""
    dtype: str
    bytes_per_token: float
    """Of the test text."""


def numbered(data: DataSpec, folder: Path | None, note: Note) -> tuple[TokenArray, Numbering]:
    """The tokens of the text at `data.root`, mapped, and what they mean.

    They lie in `folder`, the node's shared memory, if they fit into `data.memory_limit_bytes`, else in a file on a
    disk, where a later run finds them. Without a folder they lie in a file that has no name any more.

    Raises:
        DataNotFound: There is no such text, or no such tokenizer.
        SpecRejected: It is no text in UTF-8, or no tokenizer.
        DiskFull: There is no room for them.
    """
    files = text_files(data)
    writer = _Writer(data, files, note)
    size = sum(path.stat().st_size for path in files)
    fits = 2 * size <= data.memory_limit_bytes
    if fits and folder is None:
        with tempfile.TemporaryDirectory(prefix="millrace-tokens-") as passing:
            writer.write(Path(passing))
            return _mapped(Path(passing))
    places = [*([folder] if fits and folder is not None else []), *on_disk(Path(data.root))]
    try:
        return _mapped(kept(f"tokens-{writer.name}", places, writer.write, note))
    except OSError as error:
        raise DiskFull(f"there is no room for the tokens of {data.root}: {error}") from error


def _mapped(folder: Path) -> tuple[TokenArray, Numbering]:
    about = Numbering(**json.loads((folder / "about.json").read_text()))
    path = folder / "tokens"
    nothing: TokenArray = np.empty(0, about.dtype)
    return (np.asarray(np.memmap(path, about.dtype, mode="r")) if path.stat().st_size else nothing), about


class _Writer:
    """Numbers a text."""

    def __init__(self, data: DataSpec, files: list[Path], note: Note) -> None:
        self.data, self.files, self.note = data, files, note
        self.total = sum(path.stat().st_size for path in files)
        self.done, self.next_s = 0, 0.0
        what: list[object] = [data.tokens, data.validation]
        if data.tokenizer is not None:
            need("tokenizers", "hf", "data.tokenizer")
            path = Path(data.tokenizer)
            if not path.is_file():
                raise DataNotFound(f"data.tokenizer: there is no file {path.absolute()}")
            what.append(hashlib.sha256(path.read_bytes()).hexdigest())
        self.name = digest_of(what, files)

    def write(self, folder: Path) -> None:
        """Write the tokens and what they mean. Raises OSError where there is no room."""
        about = self._characters(folder) if self.data.tokenizer is None else self._tokenized(folder)
        (folder / "about.json").write_text(json.dumps(asdict(about)))

    def _characters(self, folder: Path) -> Numbering:
        found = np.empty(0, np.uint32)
        for part in code_points(self.files):
            found = np.union1d(found, part)
        kind, count = _kind(len(found)), 0
        with (folder / "tokens").open("wb") as file:
            for part in code_points(self.files):
                check_room(folder, len(part) * kind.itemsize)
                np.searchsorted(found, part).astype(kind).tofile(file)
                count += len(part)
        first = int(count * (1 - self.data.validation))
        return Numbering(len(found), first, kind.name, self.total / max(1, count))

    def _tokenized(self, folder: Path) -> Numbering:
        tokenizer = _tokenizer(str(self.data.tokenizer))
        vocabulary = max(tokenizer.get_vocab().values(), default=0) + 1
        kind, (train, test) = _kind(vocabulary), parts(self.files, self.data.validation)
        with (folder / "tokens").open("wb") as file:
            first, _ = self._write_spans(train, tokenizer, kind, file)
            count, size = self._write_spans(test, tokenizer, kind, file)
        return Numbering(vocabulary, first, kind.name, size / max(1, count))

    def _write_spans(self, spans: list[tuple[Path, int, int]], tokenizer: Any, kind: Any, file: Any) -> tuple[int, int]:
        """How many tokens, of how many bytes."""
        count = size = 0
        for several in _several(piece for span in spans for piece in pieces(*span)):
            check_room(Path(file.name).parent, sum(map(len, several)) * kind.itemsize)
            for encoding in tokenizer.encode_batch(several, add_special_tokens=False):
                np.asarray(encoding.ids, kind).tofile(file)
                count += len(encoding.ids)
            size += sum(len(piece.encode()) for piece in several)
            self._tell(sum(map(len, several)))
        return count, size

    def _tell(self, num_bytes: int) -> None:
        self.done += num_bytes
        if (now := time.monotonic()) > self.next_s:
            self.next_s = now + NOTE_EVERY_S
            self.note(f"makes tokens of the text, {self.done / 1e6:,.0f} of {self.total / 1e6:,.0f} MB")


def _several(texts: Iterator[str]) -> Iterator[list[str]]:
    while found := list(itertools.islice(texts, AT_ONCE)):
        yield found


def _kind(vocabulary: int) -> "np.dtype[Any]":
    return np.dtype(np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.uint32)


def _tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # it raises nothing else
        raise SpecRejected(f"data.tokenizer: {path} is no file of tokenizers ({error}); save one as JSON") from error
