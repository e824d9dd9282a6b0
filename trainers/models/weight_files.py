"""Files of weights, as PyTorch's users have them: safetensors, what `torch.save` writes, and the folders of
`torch.distributed.checkpoint` and of Hugging Face's libraries. Nothing that is read here can run code."""

import json
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.serialization import _get_layout

from trainers.errors import SpecRejected

Tensors = dict[str, torch.Tensor]
SAVED = (".pt", ".pth", ".bin", ".ckpt")
"""Suffixes of what `torch.save` writes."""
INNER = ("state_dict", "model_state_dict", "model")
"""Under which of these a larger checkpoint, as Lightning's, keeps the model."""
HARMLESS = re.compile(r"torch(\.serialization|\.distributed\.checkpoint\.(metadata|filesystem))?|collections|pathlib")
"""The modules of whatever the list of a distributed checkpoint is made of."""


def read_weights(path: Path, key_mapping: Mapping[str, str] | None = None) -> Tensors:
    """The tensors of a file or folder on the CPU, by their names.

    Args:
        path: A file `.safetensors`, or one of `SAVED`; a folder that `torch.distributed.checkpoint` has written, or
            one of Hugging Face's, with one file of safetensors or several and an index.
        key_mapping: Patterns and what takes their places in the names, one after another, as
            `transformers.PreTrainedModel.from_pretrained` has them.

    Raises:
        SpecRejected: It is not there, of another kind, or two tensors get one name.
    """
    tensors = _of_folder(path) if path.is_dir() else _of_file(path)
    if not key_mapping:
        return tensors
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        new = name
        for pattern, place in key_mapping.items():
            new = re.sub(pattern, place, new)
        if new in renamed:
            raise SpecRejected(f"model.key_mapping: two tensors of {path.absolute()} would be {new}; one is {name}")
        renamed[new] = tensor
    return renamed


def load_weights(path: Path) -> Tensors:
    """The tensors of a safetensors file on the CPU. Raises SpecRejected when there is no such file, or another kind."""
    if not path.is_file():
        raise SpecRejected(f"model.weights: there is no file {path.absolute()}")
    try:
        tensors: Tensors = load_file(path)
    except SafetensorError as error:
        raise SpecRejected(f"model.weights: {path.absolute()} is not a safetensors file ({error})") from error
    return tensors


def _of_file(path: Path) -> Tensors:
    if path.suffix not in SAVED or not path.is_file():
        return load_weights(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise SpecRejected(
            f"model.weights: {path.absolute()} holds more than tensors, or is damaged; save the model's state_dict() "
            f"alone{_wrong_with(error)}"
        ) from error
    if isinstance(found, Mapping):
        found = next((found[name] for name in INNER if isinstance(found.get(name), Mapping)), found)
        tensors = {str(name): value for name, value in found.items() if isinstance(value, torch.Tensor)}
        if tensors:
            return tensors
    raise SpecRejected(f"model.weights: {path.absolute()} has no tensors by name; save the model's state_dict()")


def _wrong_with(error: Exception) -> str:
    """What torch found, without its advice, which is to trust the file."""
    if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return f" (it names {named[1]})"
    return "" if isinstance(error, pickle.UnpicklingError) else f" ({str(error).splitlines()[0]})"


def _of_folder(path: Path) -> Tensors:
    if (path / ".metadata").is_file():
        return _of_distributed(path)
    index, whole = path / "model.safetensors.index.json", path / "model.safetensors"
    if not index.is_file():
        if not whole.is_file():
            raise SpecRejected(
                f"model.weights: the folder {path.absolute()} holds neither model.safetensors or its index, as Hugging "
                "Face's do, nor .metadata, as those of torch.distributed.checkpoint do; name a file in it, or another "
                "folder"
            )
        return load_weights(whole)
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: tensor for file in files for name, tensor in load_weights(path / file).items()}


def _of_distributed(path: Path) -> Tensors:
    """All tensors of a distributed checkpoint; optimizers' too, which then go by names that no model has."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(FileSystemReader):
        """Torch's own, but for the list of what there is, which it would unpickle whatever it names."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            with (path / ".metadata").open("rb") as file:
                found: Metadata = _Harmless(file).load()
            return found

    reader = Reader(str(path))
    try:
        held = reader.read_metadata().state_dict_metadata
        tensors: dict[str, Any] = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            for name, entry in held.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with warnings.catch_warnings(action="ignore"):  # that one process reads it
            load(tensors, storage_reader=reader, no_dist=True)
    except (pickle.UnpicklingError, AttributeError, EOFError, OSError, RuntimeError, ValueError) as error:
        raise SpecRejected(
            f"model.weights: {path.absolute()} is no checkpoint of torch.distributed.checkpoint that can be read: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return tensors


class _Harmless(pickle.Unpickler):
    """Makes nothing but what a distributed checkpoint's list consists of: plain classes of a few modules."""

    def find_class(self, module: str, name: str) -> Any:
        if HARMLESS.fullmatch(module) and "." not in name:  # a method of a class would be found by a dot
            found = super().find_class(module, name)
            if (isinstance(found, type) and found.__module__ == module) or _is_harmless(found):
                return found
        raise pickle.UnpicklingError(f"its list names {module}.{name}")


def _is_harmless(found: object) -> bool:
    """Whether it says how a tensor lies in memory."""
    return isinstance(found, torch.dtype | torch.layout | torch.memory_format) or found is _get_layout
