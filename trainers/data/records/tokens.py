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
    ends: tuple[int, ...]
    """How many tokens there are up to the end of each part: of the training text, maybe of that for validation, and of
    the test text."""
    dtype: str
    bytes_per_token: float
    """Of the text that is held out."""


def numbered(data: DataSpec, folder: Path | None, note: Note) -> tuple[TokenArray, Numbering]:
    """The tokens of the text at `data.root` and of other sets that are named, mapped, and what they mean.

    They lie in `folder`, the node's shared memory, if they fit into `data.memory_limit_bytes`, else in a file on a
    disk, where a later run finds them. Without a folder they lie in a file that has no name any more.

    Raises:
        DataNotFound: There is no such text, or no such tokenizer.
        SpecRejected: It is no text in UTF-8, or no tokenizer.
        DiskFull: There is no room for them.
    """
    sets = [text_files(root) for root in (data.root, *data.given_sets)]
    writer = _Writer(data, sets, note)
    size = writer.total
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
    found = json.loads((folder / "about.json").read_text())
    about = Numbering(**found | {"ends": tuple(found["ends"])})
    path = folder / "tokens"
    nothing: TokenArray = np.empty(0, about.dtype)
    return (np.asarray(np.memmap(path, about.dtype, mode="r")) if path.stat().st_size else nothing), about


class _Writer:
    """Numbers a text."""

    def __init__(self, data: DataSpec, sets: list[list[Path]], note: Note) -> None:
        """sets: The files of the training set, and of others that are named."""
        self.data, self.sets, self.note = data, sets, note
        self.files = files = [path for part in sets for path in part]
        self.total = sum(path.stat().st_size for path in files)
        self.done, self.next_s = 0, 0.0
        what: list[object] = [data.tokens, data.held_out, list(map(len, sets)), "ends"]
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
        kind, counts = _kind(len(found)), [0] * len(self.sets)
        with (folder / "tokens").open("wb") as file:
            for place, files in enumerate(self.sets):
                for part in code_points(files):
                    check_room(folder, len(part) * kind.itemsize)
                    np.searchsorted(found, part).astype(kind).tofile(file)
                    counts[place] += len(part)
        ends = ends_of(self.data, counts)
        return Numbering(len(found), ends, kind.name, self.total / max(1, sum(counts)))

    def _tokenized(self, folder: Path) -> Numbering:
        tokenizer = _tokenizer(str(self.data.tokenizer))
        vocabulary = max(tokenizer.get_vocab().values(), default=0) + 1
        kind, (train, rest) = _kind(vocabulary), parts(self.sets[0], self.data.held_out)
        given = [[(path, 0, path.stat().st_size) for path in files] for files in self.sets[1:]]
        spans = [train, *([rest] if has_rest(self.data) else []), *given]
        with (folder / "tokens").open("wb") as file:
            (first, _), *others = (self._write_spans(part, tokenizer, kind, file) for part in spans)
        counts, sizes = [count for count, _ in others], [size for _, size in others]
        ends = tuple(itertools.accumulate([first, *counts]))
        return Numbering(vocabulary, ends, kind.name, sum(sizes) / max(1, sum(counts)))

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


def has_rest(data: DataSpec) -> bool:
    """Whether a part of the data at `root` is held out."""
    return bool(data.held_out)


def ends_of(data: DataSpec, counts: list[int]) -> tuple[int, ...]:
    """Where each part ends, as `Numbering` has it. counts: Tokens of the training set, and of others that are named."""
    whole, *given = counts
    parts_of_root = [whole]
    if has_rest(data):
        first = int(whole * (1 - data.held_out))
        parts_of_root = [first, whole - first]
    return tuple(itertools.accumulate([*parts_of_root, *given]))


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
