"""Batch-norm statistics computed anew for an evaluation, instead of the running averages (paper 4, figure 4)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainers.data.batches import Data


@torch.no_grad()
def recomputed_statistics(
    model: nn.Module, minibatches: Iterable[Data], forward: Callable[[Data], object]
) -> dict[str, Tensor]:
    """The buffers of a model, those of batch norm as the mean over minibatches of what each one has.

    Everything but batch norm stays in evaluation mode.

    Args:
        model: In evaluation mode, and left so; its own buffers are overwritten.
        minibatches: Of the training set.
        forward: Passes one of them through the model.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch's word for a plain mean
        norm.train()
    try:
        for data in minibatches if norms else ():
            forward(data)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
    return {name: buffer.clone() for name, buffer in model.named_buffers()}
