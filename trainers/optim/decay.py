"""The parameters without weight decay."""

from collections.abc import Iterable

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainers.optim.optimizers.config import Exempt


def exempt_names(model: nn.Module, exempt: Iterable[Exempt]) -> set[str]:
    """Names of the parameters without weight decay: gamma and beta of batch normalisation (paper 4, section 5.1), and
    the biases of all layers, as `exempt` asks for."""
    kinds, found = set(exempt), set[str]()
    if "batch_norm" in kinds:
        for prefix, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                found |= {f"{prefix}.{leaf}" if prefix else leaf for leaf, _ in module.named_parameters(recurse=False)}
    if "biases" in kinds:
        leaves = ((name, name.rpartition(".")[2]) for name, _ in model.named_parameters())
        found |= {name for name, leaf in leaves if leaf == "bias" or leaf.endswith("_bias")}
    return found
