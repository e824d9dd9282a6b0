"""The buffers of a model, of any type: running statistics, moving averages, counters, masks.

They lie in one row of float32 words, so that they travel and rest like parameters. Only the bits are kept there: a
counter of int64 takes two words.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Named = dict[str, Tensor]
ALIGN = 4
"""Words to a multiple of which a buffer begins: the largest element has 16 bytes."""
WORD = 4
"""Bytes of a word."""


class ModuleBuffers:
    """Where the buffers of one model stand, what they are as built, and where each lies in a row of words."""

    def __init__(self, model: nn.Module) -> None:
        self.places: dict[str, list[tuple[nn.Module, str]]] = {}  # a buffer may stand in several modules
        self.aliases: dict[str, str] = {}  # every name -> the first of the same buffer
        first: dict[int, str] = {}
        self.initial: Named = {}
        for name, buffer in model.named_buffers(remove_duplicate=False):
            module, _, leaf = name.rpartition(".")
            known = first.setdefault(id(buffer), name)
            self.aliases[name] = known
            self.places.setdefault(known, []).append((model.get_submodule(module), leaf))
            self.initial.setdefault(known, buffer.detach().clone())
        self.width = sum(map(_words, self.initial.values()))

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Let the model work on these tensors themselves."""
        for name, value in values.items():
            for module, leaf in self.places[name]:
                module._buffers[leaf] = value

    def taken(self, values: Named) -> None:
        """Where the model has put another tensor in a buffer's place, take it into `values`.

        Raises:
            ValueError: It has another shape or type.
        """
        for name, value in values.items():
            module, leaf = self.places[name][0]
            now = module._buffers[leaf]
            if now is value:
                continue
            if now is None or now.shape != value.shape or now.dtype != value.dtype:
                kind = "None" if now is None else f"{now.dtype} of shape {tuple(now.shape)}"
                was = f"{value.dtype} of shape {tuple(value.shape)}"
                raise ValueError(f"the buffer {name} was {was} and becomes {kind}; a buffer must keep shape and type")
            values[name] = now.detach()

    def views(self, row: Tensor) -> Named:
        """The buffers in a row, (width,) float32, by name, as views of it.

        Autograd takes each for a tensor of its own: a counter that is raised in place does not spoil what a layer above
        has saved.
        """
        found, begin = {}, 0
        for name, like in self.initial.items():
            words = _words(like)
            cut = row[begin : begin + words].view(like.dtype)
            found[name], begin = cut[: like.numel()].view(like.shape).data, begin + words
        return found

    def fitted(self, rows: Tensor, num_virtual: int) -> Tensor:
        """(V, width) for another V: the first ranks keep theirs, new ones begin with what all have in common."""
        if num_virtual <= len(rows) or not self.width:
            return rows[:num_virtual] if num_virtual <= len(rows) else rows.new_zeros(num_virtual, 0)
        common = rows.new_zeros(self.width)
        shared = in_common({rank: self.views(row) for rank, row in enumerate(rows.contiguous())})
        for name, view in self.views(common).items():
            view.copy_(shared[name])
        return torch.cat([rows, common.expand(num_virtual - len(rows), -1)])


def in_common(buffers: Mapping[int, Named]) -> Named:
    """One set of buffers for all virtual ranks: the mean of floating ones, and the lowest rank's of the others.

    What all ranks have alike stays so to the bit.
    """
    if not buffers:
        return {}
    ranks = sorted(buffers)
    return {name: _mean([buffers[rank][name] for rank in ranks]) for name in buffers[ranks[0]]}


def _mean(values: list[Tensor]) -> Tensor:
    first = values[0]
    if not first.is_floating_point():
        return first.clone()
    every = torch.stack(values)
    return torch.where((every == first).all(0), first, every.mean(0))


def _words(buffer: Tensor) -> int:
    words = -(-buffer.numel() * buffer.element_size() // WORD)
    return -(-words // ALIGN) * ALIGN
