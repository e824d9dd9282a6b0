"""The update rule of Muon (Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks")."""

import torch
from torch import Tensor

from trainers.optim.buffers import Buffers
from trainers.optim.optimizers.adam.rule import AdamW
from trainers.optim.rule import ParameterRule, ParameterStep, Step, norm

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic, as in the authors' implementation."""


class Muon(ParameterRule):
    """u <- m u + (1 - m) g, w <- (1 - lr decay) w - lr sqrt(max(1, rows / columns)) O(u), or O((1 - m) g + m u).

    A convolution (O, I, H, W) is a matrix of O rows. As in the authors' implementation, embeddings, the output layer
    and whatever is no matrix are AdamW's. Here O computes in float32, not in bfloat16.
    """

    state_names = AdamW.state_names  # a matrix has its momentum in the first, and none of the others

    def __init__(self, m: float, nesterov: bool, iterations: int, others: AdamW, rate: float) -> None:
        """rate: AdamW's as a multiple of the matrices'."""
        self.m, self.nesterov, self.iterations = m, nesterov, iterations
        self.others, self.rate = others, rate

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: ParameterStep) -> None:
        lr = step.lr if step.parameter.is_hidden else step.lr * self.rate
        w = current.params * (1 - lr * step.decay) if step.decay else current.params
        if not step.parameter.is_hidden:
            self.others.apply(Buffers(w, current.state), g, following, Step(lr))
            return
        u = torch.lerp(current.state["exp_avg"], g, 1 - self.m, out=following.state["exp_avg"])
        for name in ("exp_avg_sq", "step"):
            following.state[name].copy_(current.state[name])
        direction = torch.lerp(g, u, self.m) if self.nesterov else u
        matrix = direction.view(step.parameter.shape[0], -1)
        scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
        torch.add(w, orthogonal(matrix, self.iterations).reshape(-1), alpha=-lr * scale, out=following.params)


def orthogonal(matrix: Tensor, iterations: int) -> Tensor:
    """About U V^T of the singular value decomposition U S V^T of a matrix (r, c), by a quintic Newton-Schulz iteration
    that makes singular values lie near 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / (norm(matrix.reshape(-1)) + 1e-7)
    for _ in range(iterations):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x
