"""Each element as an integer of eight bits, times a scale.

Source: Seide et al. 2014, "1-bit stochastic gradient descent", whose error feedback is the same for any number of bits.
"""

import torch
from torch import Tensor

from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.scales import exponents, in_blocks, num_blocks, scales

LARGEST = 127
MOST = 121
"""Exponent of the largest scale: 127 times 2^121 is a float32, and 64 times 2^122 no longer."""


class Int8(Compressor):
    """p becomes s round(p / s), where s is max |p| / 127 over a block, rounded up to a power of two. Rounding is to the
    nearest, and of two that are as near to the even one, so what is left is at most s / 2; at most s in a block
    with an element above 3.37e38, which is within 1 % of the largest float32."""

    def num_bytes(self, numel: int) -> int:
        return num_blocks(numel) + numel

    def encode(self, vector: Tensor) -> list[Tensor]:
        blocks = in_blocks(vector)
        found = exponents(blocks.abs().amax(1) / LARGEST, rounds_up=True, most=MOST)
        steps = (blocks / scales(found)).nan_to_num_(nan=0.0).round_()
        return [found, steps.clamp_(-LARGEST, LARGEST).to(torch.int8).flatten()[: len(vector)]]

    def decode(self, message: Tensor, into: Tensor) -> None:
        blocks = num_blocks(len(into))
        found, steps = message[:blocks].view(torch.int8), message[blocks : self.num_bytes(len(into))].view(torch.int8)
        into.copy_((in_blocks(steps.float()) * scales(found)).flatten()[: len(into)])
