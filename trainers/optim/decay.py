"""The parameters without weight decay."""

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from trainers.optim.optimizers.config import Exempt

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _InstanceNorm)
"""Normalisations, batch norm first."""


def exempt_names(model: nn.Module, exempt: Iterable[Exempt]) -> set[str]:
    """Names of the parameters without weight decay: gamma and beta of batch normalisation (paper 4, section 5.1) or of
    all normalisations, and the biases of all layers, as `exempt` asks for."""
    kinds, found = set(exempt), set[str]()
    if norms := NORMS if "norms" in kinds else NORMS[:1] if "batch_norm" in kinds else ():
        for prefix, module in model.named_modules():
            if isinstance(module, norms):
                found |= {f"{prefix}.{leaf}" if prefix else leaf for leaf, _ in module.named_parameters(recurse=False)}
    if "biases" in kinds:
        leaves = ((name, name.rpartition(".")[2]) for name, _ in model.named_parameters())
        found |= {name for name, leaf in leaves if leaf == "bias" or leaf.endswith("_bias")}
    return found
