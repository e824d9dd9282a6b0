"""One scale for each block of adjacent elements, a power of two.

With a power of two, what is sent and the difference from what was to be sent are computed without rounding, as long as
they are within 24 bits of each other. So nothing gets lost between what is sent and what is kept. A scale travels as
its exponent, in a byte.
"""

import math

import torch
from torch import Tensor

from trainers.optim.compress.config import BLOCK

ZERO, INFINITE = -128, 127
"""Exponents of a block without anything in it, and of one in which something is not finite."""
LEAST, MOST = -120, 126


def num_blocks(numel: int) -> int:
    """Of a vector (numel,)."""
    return -(-numel // BLOCK)


def in_blocks(vector: Tensor) -> Tensor:
    """(n,) as (blocks, BLOCK), filled up with zeros."""
    return torch.nn.functional.pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)


def exponents(sizes: Tensor, rounds_up: bool, most: int = MOST) -> Tensor:
    """(blocks,) of int8: the powers of two next to sizes (blocks,) that are not negative, up to 2^most."""
    mantissa, exponent = torch.frexp(sizes)  # mantissa in [1/2, 1)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent if rounds_up else exponent - 1)
    found = exponent.clamp(LEAST, most)
    found = torch.where(sizes == 0, ZERO, found)
    return torch.where(sizes.isfinite(), found, INFINITE).to(torch.int8)


def scales(found: Tensor) -> Tensor:
    """(blocks, 1) the scales of exponents (blocks,): 0 of an empty block, and not a number where something was not
    finite."""
    powers = torch.ldexp(torch.ones(len(found), device=found.device), found.to(torch.int32))
    powers = torch.where(found == ZERO, 0.0, powers)
    return torch.where(found == INFINITE, math.nan, powers)[:, None]
