"""The global generators of torch, numpy and Python, for code of the user's that draws from them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from trainers.data.draws import key


def seed_generators(seed: int, epoch: int, example: int, stream: int) -> None:
    """Have all three draw what belongs to (seed, epoch, example), whoever reads it and whatever was read before."""
    drawn = seed_torch(seed, epoch, example, stream)
    np.random.seed([drawn & 0xFFFFFFFF, drawn >> 32])  # what users draw from
    random.seed(drawn)


def seed_torch(seed: int, epoch: int, example: int, stream: int) -> int:
    """Likewise torch's generator alone. Returns the 64 bits with which it begins."""
    drawn = key(key(seed, epoch, stream), example, 0)
    torch.default_generator.manual_seed(drawn)
    return drawn


@contextmanager
def kept_generators() -> Iterator[None]:
    """Whatever is seeded and drawn inside, the generators go on afterwards as if nothing had been."""
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
