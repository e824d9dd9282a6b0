"""Random numbers that depend on what they are drawn for, not on when they are drawn.

A draw belongs to (seed, epoch, stream, example, unit): whichever process computes the example, in whichever minibatch
and after whatever failure, it gets the same number. The generator is counter-based (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3"): the finaliser of splitmix64 (Steele et al. 2014) over a counter, in numpy and, bit
for bit the same, in torch on any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BITS = 24
"""Bits of a draw: as many as a float32 holds exactly, so that numpy and torch agree on every device."""


def permutation(seed: int, epoch: int, num_examples: int) -> Int64Array:
    """(num_examples,) int64: the order of the epoch, the same on all workers (paper 4, section 3, remark 4)."""
    order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_examples)
    return order.astype(np.int64, copy=False)


def uniform(seed: int, epoch: int, examples: Int64Array, units: int, stream: int) -> Float32Array:
    """(B, units) float32 in [0, 1) for the examples (B,) int64; one row is the same in any minibatch."""
    with np.errstate(over="ignore"):  # unsigned arithmetic wraps around on purpose
        rows = _mix(np.uint64(key(seed, epoch, stream)) + examples.astype(np.uint64) * np.uint64(_GOLDEN))
        counters = np.arange(1, units + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        words = _mix(rows[:, None] + counters)
    return (words >> np.uint64(64 - _BITS)).astype(np.float32) * np.float32(2.0**-_BITS)


def uniform_torch(
    seed: int, epoch: int, examples: torch.Tensor, units: int, stream: int, first: int = 0
) -> torch.Tensor:
    """The same bits as `uniform`, computed on the device of `examples` (B,) int64, from unit number `first` on."""
    import torch  # not at the top: the coordinator draws permutations and has no torch

    rows = _mix_torch(examples * _signed(_GOLDEN) + _signed(key(seed, epoch, stream)))
    counters = torch.arange(first + 1, first + units + 1, dtype=torch.int64, device=examples.device) * _signed(_GOLDEN)
    words = _mix_torch(rows[:, None] + counters)
    return _shift(words, 64 - _BITS).to(torch.float32).mul_(2.0**-_BITS)


def key(seed: int, epoch: int, stream: int) -> int:
    """64 bits for one (seed, epoch, stream); neighbouring values give unrelated keys."""
    key = 0
    for part in (seed, epoch, stream):
        key = (key + part + _GOLDEN) & _MASK
        key = ((key ^ (key >> 30)) * _FIRST) & _MASK
        key = ((key ^ (key >> 27)) * _SECOND) & _MASK
        key ^= key >> 31
    return key


def _mix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection of 64 bits in which every input bit moves every output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
    return words ^ (words >> np.uint64(31))


def _mix_torch(words: torch.Tensor) -> torch.Tensor:
    """`_mix` on int64, in place: the tensor is overwritten."""
    words.bitwise_xor_(_shift(words, 30)).mul_(_signed(_FIRST))
    words.bitwise_xor_(_shift(words, 27)).mul_(_signed(_SECOND))
    return words.bitwise_xor_(_shift(words, 31))


def _shift(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (words >> bits).bitwise_and_(2 ** (64 - bits) - 1)


def _signed(word: int) -> int:
    """The int64 with the same 64 bits."""
    return word - 2**64 if word >= 2**63 else word
