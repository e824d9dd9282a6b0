"""Weights as safetensors, under the names of `state_dict`: plain PyTorch loads them in three lines."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from trainers.errors import SpecRejected

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """What became of the tensors of a file of initial weights."""

    loaded: tuple[str, ...]
    """Taken from the file."""

    shape_differs: tuple[str, ...]
    """In both, with other shapes (a last layer for other classes): the model kept its own start."""

    missing: tuple[str, ...]
    """In the model only: it kept its own start."""

    unused: tuple[str, ...]
    """In the file only."""


def save_weights(
    path: Path, weights: nn.Module | Mapping[str, torch.Tensor], header: dict[str, str] | None = None
) -> None:
    """Writes parameters and buffers under their names in `state_dict`, whole or not at all (a rename)."""
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    # a clone each: safetensors refuses tensors that share memory, as tied weights do
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    save_file(plain, part, header)
    os.replace(part, path)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file on the CPU. Raises SpecRejected when there is no such file, or another kind."""
    if not path.is_file():
        raise SpecRejected(f"model.weights: there is no file {path.absolute()}")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise SpecRejected(f"model.weights: {path.absolute()} is not a safetensors file ({error})") from error
    return tensors


def initialise(module: nn.Module, path: Path) -> LoadReport:
    """Loads by name what has the same shape; everything else keeps its own start, which is logged.

    Raises SpecRejected when there is no such file or when no parameter of the model is in it.
    """
    tensors, state = load_weights(path), module.state_dict()
    common = [name for name in state if name in tensors]
    loaded = tuple(name for name in common if tensors[name].shape == state[name].shape)
    report = LoadReport(
        loaded=loaded,
        shape_differs=tuple(name for name in common if name not in set(loaded)),
        missing=tuple(name for name in state if name not in tensors),
        unused=tuple(name for name in tensors if name not in state),
    )
    parameters = dict(module.named_parameters())
    if not any(name in parameters for name in loaded):
        raise SpecRejected(
            f"model.weights: nothing in {path.absolute()} fits the model; it holds {', '.join(list(tensors)[:3])} ..., "
            f"the model {', '.join(list(parameters)[:3])} ..."
        )
    with torch.no_grad():
        for name in loaded:
            state[name].copy_(tensors[name])
    kept = report.shape_differs + report.missing
    if kept:
        log.warning("%s: %d tensors loaded; these keep their own start: %s", path.name, len(loaded), ", ".join(kept))
    return report
