"""The interface of the ways to compress a vector."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

ALIGN_BYTES = 4
"""A message is a multiple of so many bytes long: transports carry it as if it were float32."""


class Compressor(ABC):
    """A vector becomes a message that is shorter, and a message a vector near the first one. The same vector gives the
    same message everywhere, and its length depends on that of the vector alone."""

    @abstractmethod
    def num_bytes(self, numel: int) -> int:
        """The length of the message of a vector (numel,), before it is padded."""

    @abstractmethod
    def encode(self, vector: Tensor) -> list[Tensor]:
        """The parts of the message of a vector (n,) float32, of any types."""

    @abstractmethod
    def decode(self, message: Tensor, into: Tensor) -> None:
        """Write what a message (`num_bytes`,) of uint8 says into a vector (n,) float32."""

    def length(self, numel: int) -> int:
        """Bytes of the message of a vector (numel,)."""
        return -(-self.num_bytes(numel) // ALIGN_BYTES) * ALIGN_BYTES

    def message(self, vector: Tensor) -> Tensor:
        """(`length`,) of uint8, for a vector (n,) float32."""
        found = torch.zeros(self.length(len(vector)), dtype=torch.uint8, device=vector.device)
        parts = torch.cat([part.view(torch.uint8) for part in self.encode(vector)])
        found[: len(parts)] = parts
        return found
