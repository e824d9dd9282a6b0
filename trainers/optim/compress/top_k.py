"""The largest elements of a vector, exactly, and no others.

Source: Stich et al. 2018, "Sparsified SGD with memory".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.optim.compress.bits import packed, unpacked
from trainers.optim.compress.compressor import Compressor


@dataclass(frozen=True)
class TopK(Compressor):
    """The share of the elements with the largest absolute value; of equal ones those that come first.

    A message has their values and says where they are: by their numbers, or by a bit for each element, whichever is
    shorter. If all are sent, it has the values alone.
    """

    share: float

    def count(self, numel: int) -> int:
        """Elements that are sent of a vector (numel,): at least one."""
        return min(numel, math.ceil(self.share * numel))

    def num_bytes(self, numel: int) -> int:
        count = self.count(numel)
        return 4 * count + self._position_bytes(numel, count)

    def encode(self, vector: Tensor) -> list[Tensor]:
        numel, count = len(vector), self.count(len(vector))
        if count == numel:
            return [vector.contiguous()]
        chosen = _largest(vector, count)
        if self._names_numbers(numel, count):
            return [vector[chosen], chosen.to(torch.int32)]
        is_sent = torch.zeros(numel, dtype=torch.bool, device=vector.device)
        is_sent[chosen] = True
        return [vector[chosen], packed(is_sent)]

    def decode(self, message: Tensor, into: Tensor) -> None:
        numel, count = len(into), self.count(len(into))
        values, where = message[: 4 * count].view(torch.float32), message[4 * count : self.num_bytes(numel)]
        if count == numel:
            into.copy_(values)
            return
        into.zero_()
        if self._names_numbers(numel, count):
            into[where.view(torch.int32).long()] = values
        else:
            into[unpacked(where, numel)] = values

    def _names_numbers(self, numel: int, count: int) -> bool:
        return 4 * count < -(-numel // 8)

    def _position_bytes(self, numel: int, count: int) -> int:
        return 0 if count == numel else min(4 * count, -(-numel // 8))


def _largest(vector: Tensor, count: int) -> Tensor:
    """Where the `count` largest elements are, in the order of the vector. `torch.topk` does not say which of several
    equal elements it takes."""
    size = vector.abs().nan_to_num_(nan=math.inf, posinf=math.inf)
    least = torch.topk(size, count, sorted=False).values.min()
    above, equal = torch.nonzero(size > least).flatten(), torch.nonzero(size == least).flatten()
    return torch.cat([above, equal[: count - len(above)]]).sort().values
