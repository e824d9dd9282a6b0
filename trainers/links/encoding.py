"""In which numbers a vector travels: as it is, or rounded to bfloat16, in the front half of the same memory."""

import torch
from torch import Tensor

from trainers.links.names import WireName

DTYPES: dict[WireName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

CHUNK = 128 * 1024
"""Elements that are rounded at a time on a CPU, so that the copy between stays in the cache."""


def encoded(memory: Tensor, wire: WireName) -> Tensor:
    """Where a vector lies as it travels, (n,), in the memory of (n,) float32."""
    return memory if wire == "float32" else memory.view(DTYPES[wire])[: memory.numel()]


def round_to(vector: Tensor, wire: WireName) -> None:
    """Round (n,) float32 in place to what travels: to the nearest, and of two that are as near to the even one."""
    if wire == "float32":
        return
    for chunk in torch.split(vector, CHUNK if vector.device.type == "cpu" else max(len(vector), 1)):
        chunk.copy_(chunk.to(DTYPES[wire]))


def bits_of(vector: Tensor) -> Tensor:
    """The same memory in a type that numpy knows."""
    return vector.view(torch.int16) if vector.dtype == torch.bfloat16 else vector
