"""Weights as safetensors, under the names of `state_dict`: plain PyTorch loads them in three lines."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from trainers.disk import writing
from trainers.errors import SpecRejected
from trainers.models.config import ModelSpec
from trainers.models.weight_files import load_weights, read_weights

__all__ = [
    "LoadReport", "initialise", "initialise_from", "load_weights", "read_weights", "save_weights", "told_of_weights",
]  # fmt: skip

log = logging.getLogger(__name__)

NAMED = 12
"""Tensors that a sentence names; a pretrained model may lack, or have, hundreds."""
TOLD = "_told_of_weights"
"""The attribute of a module with which `initialise_from` has left out something."""


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

    @property
    def left_out(self) -> str:
        """What was not taken or not given, in words; empty if all fits."""
        found = {
            "these keep their initial values": self.shape_differs + self.missing,
            "of them have another shape": self.shape_differs,
            "only in the file": self.unused,
        }
        return "; ".join(f"{words}: {_listed(names)}" for words, names in found.items() if names)


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def told_of_weights(module: nn.Module) -> str:
    """What `model.weights` lacked for this model, or had beside it, in a sentence; empty if all fitted."""
    return str(getattr(module, TOLD, ""))


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


def initialise(module: nn.Module, model: ModelSpec) -> LoadReport:
    """`initialise_from` what `model.weights` names."""
    return initialise_from(module, read_weights(Path(str(model.weights)), model.key_mapping), model)


def initialise_from(module: nn.Module, tensors: Mapping[str, torch.Tensor], model: ModelSpec) -> LoadReport:
    """Load the tensors whose name and shape match; the others keep their initial values, which
    `told_of_weights` says.

    Raises SpecRejected if no parameter of the model is among them, or, with `model.strict`, if any is left out.
    """
    path = Path(str(model.weights))
    state = module.state_dict()
    common = [name for name in state if name in tensors]
    loaded = tuple(name for name in common if tensors[name].shape == state[name].shape)
    filled = {state[name].data_ptr() for name in loaded}  # what is tied to one of these has its values
    report = LoadReport(
        loaded=loaded,
        shape_differs=tuple(name for name in common if name not in set(loaded)),
        missing=tuple(name for name in state if name not in tensors and state[name].data_ptr() not in filled),
        unused=tuple(name for name in tensors if name not in state),
    )
    parameters = dict(module.named_parameters())
    if not any(name in parameters for name in loaded):
        raise SpecRejected(
            f"model.weights: nothing in {path.absolute()} fits the model; it holds {', '.join(list(tensors)[:3])} ..., "
            f"the model {', '.join(list(parameters)[:3])} ...; where only the names differ, give model.key_mapping"
        )
    if model.strict and (left_out := report.left_out):
        raise SpecRejected(f"model.strict: {path.absolute()} does not fit the model: {left_out}")
    with torch.no_grad():
        for name in loaded:
            state[name].copy_(tensors[name])
    if report.left_out:
        told = f"model.weights: of {path.name} {len(loaded)} tensors are taken; {report.left_out}"
        log.info("%s", told)  # which a run's coordinator says once for all workers
        setattr(module, TOLD, told)
    return report
