"""Text as tokens: windows of one length, cut from files that stay where they are."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.config import DataSpec
from trainers.data.delivery import Delivery, sent_to
from trainers.data.draws import Int64Array
from trainers.data.facts import DataFacts
from trainers.data.node_lock import Note
from trainers.data.records.text_files import JoinedBytes, TokenArray, text_files
from trainers.data.records.tokens import ends_of, numbered
from trainers.errors import SpecRejected

Tokens = TokenArray | JoinedBytes


class TextDataset(Dataset):
    """Windows of T tokens with their successors: example i holds tokens i T to (i + 1) T, and as targets i T + 1 to
    (i + 1) T + 1. The first part of the text is trained, the rest is the test set."""

    fits_in_memory = True

    def __init__(self, parts: Sequence[Tokens], facts: DataFacts, limit: int | None, device: torch.device):
        """parts: The tokens of the training text, maybe of that for validation, and of the test text, (N,) each, in
        memory or mapped."""
        self.facts = facts
        self._parts = list(parts)
        self._delivery = Delivery(device)
        self._steps = np.arange(facts.inputs[0] + 1)
        self.num_train, *others = (self._windows(part) for part in parts)
        self.num_test, self.num_validation = others[-1], sum(others[:-1])
        if limit is not None:
            self.num_train = min(limit, self.num_train)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        for epoch, examples in plan:
            with self._delivery.beside():
                data = self._taken(self._parts[0], examples)
            yield self._delivery.delivered(Batch(data, epoch, examples))

    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        for examples in minibatches:
            with self._delivery.beside():
                is_test = bool(examples[0] >= self.num_validation)  # a minibatch is of one set
                data = self._taken(self._parts[-1 if is_test else 1], examples - is_test * self.num_validation)
            yield self._delivery.delivered(Batch(data, EVALUATION, examples))

    def close(self) -> None:
        self._parts = [np.empty(0, dtype=np.uint8)] * len(self._parts)

    def _windows(self, tokens: Tokens) -> int:
        return max(0, (len(tokens) - 1) // self.facts.inputs[0])

    def _taken(self, tokens: Tokens, examples: Int64Array) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, T) int64 each: tokens, and those that follow them."""
        places = examples[:, None] * self.facts.inputs[0] + self._steps  # (B, T + 1)
        rows = sent_to(torch.from_numpy(tokens[places].astype(np.int64)), self._delivery.device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def open_text(data: DataSpec, folder: Path | None, device: torch.device, note: Note = lambda _: None) -> TextDataset:
    """The text at `data.root`, and at others that are named: a file, or all files of a folder in the order of their
    names.

    Bytes are mapped where they lie, so that a text may be larger than memory. Other tokens are numbered as `numbered`
    does it, whose errors this raises too.

    Raises:
        DataNotFound: There is no such file.
        SpecRejected: It is no text in UTF-8, or shorter than a window of each part.
    """
    tokens: Tokens
    if data.tokens == "bytes" and data.tokenizer is None:
        sets = [text_files(root) for root in (data.root, *data.given_sets)]
        tokens = JoinedBytes([path for files in sets for path in files])
        ends = ends_of(data, [sum(path.stat().st_size for path in files) for files in sets])
        facts = DataFacts((data.context,), vocabulary=256, unit="byte")
    else:
        tokens, found = numbered(data, folder, note)
        by_bytes = {"unit": "byte", "units_per_token": found.bytes_per_token}
        unit: dict[str, Any] = {"unit": "character"} if data.tokenizer is None else by_bytes
        ends, facts = found.ends, DataFacts((data.context,), vocabulary=found.vocabulary, **unit)
    parts = [tokens[first:end] for first, end in pairwise((0, *ends))]
    dataset = TextDataset(parts, facts, data.limit, device)
    if min(map(len, parts)) <= data.context:
        raise SpecRejected(
            f"data: {data.root} has {len(tokens):,} tokens, of which {ends[0]:,} are for training; no part may be "
            f"shorter than data.context + 1 = {data.context + 1}; set context or validation to fit, or give more text"
        )
    return dataset
