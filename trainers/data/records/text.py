"""Text as tokens: windows of one length, cut from files that stay where they are."""

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.config import DataSpec
from trainers.data.delivery import Delivery, sent_to
from trainers.data.draws import Int64Array
from trainers.data.facts import DataFacts
from trainers.data.node_lock import Note, alone_on_node
from trainers.errors import DataNotFound, SpecRejected

TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""(N,) of 1, 2 or 4 bytes each."""

CHUNK = 2**22
"""Bytes read at a time where characters become tokens."""


class TextDataset(Dataset):
    """Windows of T tokens with their successors: example i holds tokens i T to (i + 1) T, and as targets i T + 1 to
    (i + 1) T + 1. The first part of the text is trained, the rest is the test set."""

    fits_in_memory = True

    def __init__(self, train: TokenArray, test: TokenArray, facts: DataFacts, limit: int | None, device: torch.device):
        """train, test: the tokens of each part, (N,), in memory or mapped."""
        self.facts = facts
        self._train, self._test = train, test
        self._delivery = Delivery(device)
        self._steps = np.arange(facts.inputs[0] + 1)
        self.num_train, self.num_test = (self._windows(part) for part in (train, test))
        if limit is not None:
            self.num_train = min(limit, self.num_train)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        for epoch, examples in plan:
            with self._delivery.beside():
                data = self._taken(self._train, examples)
            yield self._delivery.delivered(Batch(data, epoch, examples))

    def test_batches(self, batch: int) -> Iterator[Batch]:
        for start in range(0, self.num_test, batch):
            examples = np.arange(start, min(start + batch, self.num_test), dtype=np.int64)
            with self._delivery.beside():
                data = self._taken(self._test, examples)
            yield self._delivery.delivered(Batch(data, EVALUATION, examples))

    def close(self) -> None:
        nothing = np.empty(0, dtype=np.uint8)
        self._train = self._test = nothing

    def _windows(self, tokens: TokenArray) -> int:
        return max(0, (len(tokens) - 1) // self.facts.inputs[0])

    def _taken(self, tokens: TokenArray, examples: Int64Array) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T) int64 each: tokens, and those that follow them."""
        places = examples[:, None] * self.facts.inputs[0] + self._steps  # (B, T + 1)
        rows = sent_to(torch.from_numpy(tokens[places].astype(np.int64)), self._delivery.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def open_text(data: DataSpec, folder: Path | None, device: torch.device, note: Note = lambda _: None) -> TextDataset:
    """The text at `data.root`: a file, or all files of a folder in the order of their names.

    Bytes of one file are mapped where they lie, so that a text may be larger than memory. Characters become numbers in
    a file of `folder`, which all processes of the node share; without a folder, in private memory.

    Raises:
        DataNotFound: There is no such file.
        SpecRejected: It is no text in UTF-8, or shorter than a window of each part.
    """
    files = _files(data)
    tokens: TokenArray
    if data.tokens == "bytes":
        tokens, facts = _bytes(files), DataFacts((data.context,), vocabulary=256, unit="byte")
    else:
        tokens, vocabulary = _characters(data, files, folder, note)
        facts = DataFacts((data.context,), vocabulary=vocabulary, unit="character")
    first = int(len(tokens) * (1 - data.validation))
    dataset = TextDataset(tokens[:first], tokens[first:], facts, data.limit, device)
    if not dataset.num_train or not dataset.num_test:
        raise SpecRejected(
            f"data: {data.root} has {len(tokens):,} tokens, of which {first:,} are for training; neither part may be "
            f"shorter than data.context + 1 = {data.context + 1}; set context or validation to fit, or give more text"
        )
    return dataset


def _files(data: DataSpec) -> list[Path]:
    root = Path(data.root)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    if not files or not files[0].is_file():
        raise DataNotFound(f"there is no text at {root.absolute()}; set data.root to a file, or to a folder of files")
    return files


def _bytes(files: list[Path]) -> npt.NDArray[np.uint8]:
    if len(files) == 1 and files[0].stat().st_size:
        return np.asarray(np.memmap(files[0], np.uint8, mode="r"))
    return np.frombuffer(b"".join(path.read_bytes() for path in files), np.uint8)


def _characters(data: DataSpec, files: list[Path], folder: Path | None, note: Note) -> tuple[TokenArray, int]:
    """The text's characters by their place among all that occur, sorted; and how many there are."""
    if folder is None:
        return _numbered(data, files)
    folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(str(Path(data.root).absolute()).encode()).hexdigest()[:12]  # other texts may lie there too
    home = folder / f"characters-{name}.npy"
    if not home.exists():
        with alone_on_node(home.with_suffix(".lock"), note):
            if not home.exists():
                tokens, vocabulary = _numbered(data, files)
                part = folder / f"part-{home.name}"
                try:
                    np.save(part, np.concatenate([np.asarray([vocabulary], tokens.dtype), tokens]))
                except OSError:  # no room: each process keeps its own
                    part.unlink(missing_ok=True)
                    return tokens, vocabulary
                part.rename(home)
    mapped: TokenArray = np.load(home, mmap_mode="r")
    return np.asarray(mapped)[1:], int(mapped[0])


def _numbered(data: DataSpec, files: list[Path]) -> tuple[TokenArray, int]:
    size = sum(path.stat().st_size for path in files)
    if 2 * size > data.memory_limit_bytes:
        raise SpecRejected(
            f"data.tokens: numbering {size:,} bytes of characters takes up to {2 * size:,} bytes of memory, more than "
            "data.memory_limit_bytes; raise that, or take tokens: bytes, which are mapped from the file"
        )
    found = np.unique(np.concatenate([np.unique(part) for part in _code_points(files)] or [np.empty(0, np.uint32)]))
    kind: type[np.unsignedinteger[Any]]
    kind = np.uint8 if len(found) < 2**8 else np.uint16 if len(found) < 2**16 else np.uint32
    parts = [np.searchsorted(found, part).astype(kind) for part in _code_points(files)]
    return np.concatenate(parts or [np.empty(0, kind)]), len(found)


def _code_points(files: list[Path]) -> Iterator[npt.NDArray[np.uint32]]:
    for path in files:
        decoder = codecs.getincrementaldecoder("utf-8")()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                yield _decoded(path, decoder, chunk)
        yield _decoded(path, decoder, b"", final=True)


def _decoded(
    path: Path, decoder: codecs.IncrementalDecoder, chunk: bytes, final: bool = False
) -> npt.NDArray[np.uint32]:
    try:
        text = decoder.decode(chunk, final)
    except UnicodeDecodeError as error:
        raise SpecRejected(f"data.tokens: {path} is no text in UTF-8 ({error.reason}); take tokens: bytes") from error
    return np.frombuffer(text.encode("utf-32-le"), "<u4")
