"""The ways to compress a vector, each written out in a few lines of numpy, and error feedback around them."""

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

from trainers.optim.compress.feedback import ErrorFeedback

Compress = Callable[[np.ndarray], np.ndarray]


def top_k(share: float) -> Compress:
    def compress(p: np.ndarray) -> np.ndarray:
        chosen = np.argsort(-np.abs(p), kind="stable")[: math.ceil(share * len(p))]
        sent = np.zeros_like(p)
        sent[chosen] = p[chosen]
        return sent

    return compress


def sign(p: np.ndarray) -> np.ndarray:
    scales = [2.0 ** math.floor(math.log2(m)) if (m := np.abs(q).mean()) else 0.0 for q in blocks(p)]
    return spread(scales, p) * np.where(p >= 0, np.float32(1), np.float32(-1))


def int8(p: np.ndarray) -> np.ndarray:
    scales = [2.0 ** math.ceil(math.log2(m / 127)) if (m := np.abs(q).max()) else 1.0 for q in blocks(p)]
    s = spread(scales, p)
    return s * np.round(p / s)


def blocks(p: np.ndarray) -> list[np.ndarray]:
    return [p[i : i + 1024] for i in range(0, len(p), 1024)]


def spread(scales: list[float], p: np.ndarray) -> np.ndarray:
    return np.repeat(np.array(scales, dtype=np.float32), 1024)[: len(p)]


WAYS: dict[str, tuple[object, Compress]] = {
    "top_k 0.02": ({"top_k": 0.02}, top_k(0.02)),
    "top_k 0.3": ({"top_k": 0.3}, top_k(0.3)),
    "sign": ("sign", sign),
    "int8": ("int8", int8),
}
"""What a spec says, and what it means."""


class Memory:
    """Error feedback: p <- g + e, C(p) is sent, e <- p - C(p). The parts of a vector are compressed one by one."""

    def __init__(self, compress: Compress, parts: Iterable[slice], gaps: Tensor) -> None:
        self.compress, self.parts, self.gaps = compress, list(parts), gaps.numpy()
        self.e = np.zeros(len(gaps), dtype=np.float32)

    def send(self, gradient: Tensor) -> Tensor:
        p = gradient.numpy() + self.e
        sent = np.concatenate([self.compress(p[part]) for part in self.parts])
        sent[self.gaps] = 0
        self.e = p - sent
        return torch.from_numpy(sent)


def sends_watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ErrorFeedback, slice]]:
    """From now on what is sent and what is kept must be all there was, exactly, in double precision. Returns a list
    that grows: who has sent, and of which part."""
    sent, send = list[tuple[ErrorFeedback, slice]](), ErrorFeedback.send

    def watched(self: ErrorFeedback, vector: Tensor, part: slice) -> Tensor:
        there = vector[part] + self.kept[part]
        message = send(self, vector, part)  # leaves in `vector` what is sent of it
        assert torch.equal(vector[part].double() + self.kept[part].double(), there.double())
        sent.append((self, part))
        return message

    monkeypatch.setattr(ErrorFeedback, "send", watched)
    return sent
