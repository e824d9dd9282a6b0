"""Weights as safetensors, under the names of `state_dict`: plain PyTorch loads them in three lines."""

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from trainers.disk import writing
from trainers.errors import SpecRejected

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file of initial weights were used."""

    loaded: tuple[str, ...]
    """Taken from the file."""

    shape_differs: tuple[str, ...]
    """In both, with different shapes (a last layer for other classes): the model keeps its own initial values."""

    missing: tuple[str, ...]
    """Only in the model, which keeps its own initial values."""

    unused: tuple[str, ...]
    """Only in the file."""


def save_weights(
    path: Path, weights: nn.Module | Mapping[str, torch.Tensor], header: dict[str, str] | None = None
) -> None:
    """Write parameters and buffers under their names in `state_dict`, atomically (by a rename). Raises DiskFull."""
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    # a copy of each: safetensors refuses tensors that share memory, as tied weights do
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with writing(path):
            save_file(plain, part, header)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file on the CPU. Raises SpecRejected when there is no such file, or another kind."""
    if not path.is_file():
        raise SpecRejected(f"model.weights: there is no file {path.absolute()}")
    try:
        tensors: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise SpecRejected(f"model.weights: {path.absolute()} is not a safetensors file ({error})") from error
    return tensors


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of a folder as Hugging Face's libraries leave it: one file, or several with
    an index. Raises SpecRejected."""
    if not path.is_dir():
        return load_weights(path)
    index = path / "model.safetensors.index.json"
    if not index.is_file():
        return load_weights(path / "model.safetensors")
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: tensor for file in files for name, tensor in load_weights(path / file).items()}


def initialise(module: nn.Module, path: Path) -> LoadReport:
    """`initialise_from` what is in a file or folder."""
    return initialise_from(module, read_weights(path), path)


def initialise_from(module: nn.Module, tensors: Mapping[str, torch.Tensor], path: Path) -> LoadReport:
    """Load the tensors whose name and shape match; the others keep their initial values, which is logged.

    Raises SpecRejected if no parameter of the model is among them.
    """
    state = module.state_dict()
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
        log.warning(
            "%s: %d tensors loaded; these keep their initial values: %s", path.name, len(loaded), ", ".join(kept)
        )
    return report
