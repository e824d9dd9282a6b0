"""The sign of each element, times a scale.

Sources: Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy et al. 2019, "Error feedback fixes SignSGD
and other gradient compression schemes".
"""

import torch
from torch import Tensor

from trainers.optim.compress.bits import packed, unpacked
from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.config import BLOCK
from trainers.optim.compress.scales import exponents, in_blocks, num_blocks, scales


class Sign(Compressor):
    """p becomes s sign(p), where s is mean |p| over a block, rounded down to a power of two; 0 counts as positive.

    Karimireddy et al. have the mean m itself as scale, and are left with |p|^2 - n m^2 of |p|^2 for n elements. With
    a scale between m / 2 and m it is at most |p|^2 - 3/4 n m^2.
    """

    def num_bytes(self, numel: int) -> int:
        return num_blocks(numel) + -(-numel // 8)

    def encode(self, vector: Tensor) -> list[Tensor]:
        means = in_blocks(vector.abs()).sum(1) / _widths(len(vector), vector.device)
        return [exponents(means, rounds_up=False), packed(vector >= 0)]

    def decode(self, message: Tensor, into: Tensor) -> None:
        blocks = num_blocks(len(into))
        is_positive = unpacked(message[blocks : self.num_bytes(len(into))], len(into))
        of_block = scales(message[:blocks].view(torch.int8)).expand(-1, BLOCK).flatten()[: len(into)]
        torch.where(is_positive, of_block, -of_block, out=into)


def _widths(numel: int, device: torch.device) -> Tensor:
    """Elements of each block; the last one may have fewer."""
    widths = torch.full((num_blocks(numel),), float(BLOCK), device=device)
    widths[-1:] -= -numel % BLOCK
    return widths
