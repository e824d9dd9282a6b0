"""Eight truth values in a byte."""

import torch
from torch import Tensor

PLACES = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def packed(values: Tensor) -> Tensor:
    """(n,) of bool as (ceil(n / 8),) of uint8, the first in the lowest bit."""
    rest = -len(values) % 8
    rows = torch.nn.functional.pad(values.to(torch.uint8), (0, rest)).view(-1, 8)
    return (rows * PLACES.to(values.device)).sum(1, dtype=torch.uint8)


def unpacked(message: Tensor, numel: int) -> Tensor:
    """(numel,) of bool from what `packed` made of it."""
    return (message[:, None] & PLACES.to(message.device)).bool().flatten()[:numel]
