"""Weights written in the forms that `read_weights` reads again, for PyTorch's own means."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from trainers.disk import writing


def write_saved(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write what `torch.load(path, weights_only=True)` gives back: a state_dict. Raises DiskFull."""
    with writing(path):
        torch.save(dict(tensors), path)


def write_distributed(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write a folder of `torch.distributed.checkpoint`, from this one process. Raises DiskFull."""
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    with writing(folder), warnings.catch_warnings(action="ignore"):  # that it is one process that saves
        save(dict(tensors), storage_writer=FileSystemWriter(folder), no_dist=True)


def differing(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> str | None:
    """The first name whose tensor is not in both with the same type, shape and bits; None if all are."""
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or not _same(ours[name], theirs[name]):
            return name
    return None


def _same(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))  # a number that is none is equal to itself, too


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
