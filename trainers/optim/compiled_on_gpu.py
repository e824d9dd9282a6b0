"""What update rules are made of that Triton compiles, for one pass over the memory of a GPU.

torch's operations read and write each vector once an operation. A compiled rule reads each element once and writes it
once, and rounds where torch's operations on a GPU round; so its bits are theirs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.rule import Mean, OnePass, Step

BLOCK = 1024
"""Elements of a program."""


class CompiledOnGpu(OnePass):
    """A compiled rule, from a sum of gradients to the next parameters."""

    def __init__(
        self,
        kernel: Any,
        names: Sequence[str],
        constants: Callable[[Step, Mean], Sequence[float]],
        decouples_decay: bool = False,
        **fixed: float,
    ) -> None:
        """
        Args:
            kernel: Takes the sum (n,), the parameters and each state, and the next ones likewise, which may be the same
                memory; which elements have no weight decay, (n,); n; 1 / divisor, scale, weight decay, and the
                constants; whether there is any decay in the gradient; whether some elements have none; and how many
                elements one program takes.
            names: Of the states.
            constants: Of the rule, in a step.
            decouples_decay: Whether weight decay is no part of the gradient.
            fixed: What else the kernel is compiled for.
        """
        self.kernel, self.names, self.constants = kernel, names, constants
        self.decouples_decay, self.fixed = decouples_decay, fixed
        self.exempt: dict[tuple[tuple[int, int], ...], Tensor] = {}  # by the parts without weight decay

    def __call__(self, current: Buffers, gradients: Sequence[Tensor], following: Buffers, step: Step, of: Mean) -> None:
        (total,) = gradients
        numel = total.numel()
        if not numel:
            return
        vectors = [total, *self._vectors(current), *self._vectors(following)]
        inverse = float(torch.tensor(1.0) / torch.tensor(of.divisor))  # rounded to float32, as torch does
        self.kernel[(triton.cdiv(numel, BLOCK),)](
            *vectors, self._exempt(step, total), numel, inverse, of.scale, of.decay, *self.constants(step, of),
            **self.fixed, DECAYS=of.decay != 0 and not self.decouples_decay, EXEMPTS=bool(step.exempt), BLOCK=BLOCK,
            enable_fp_fusion=False,
        )  # fmt: skip

    def _vectors(self, version: Buffers) -> list[Tensor]:
        return [version.params, *(version.state[name] for name in self.names)]

    def _exempt(self, step: Step, total: Tensor) -> Tensor:
        parts = tuple((part.start, part.stop) for part in step.exempt)
        if parts not in self.exempt:
            marks = torch.zeros(total.numel() if parts else 1, dtype=torch.bool)
            for start, stop in parts:
                marks[start:stop] = True
            self.exempt[parts] = marks.to(total.device)
        return self.exempt[parts]
