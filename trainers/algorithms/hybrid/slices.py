"""Which part of each fully connected layer a worker has, and what it must see of the layer below."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from trainers.collectives.reduction_tree import block
from trainers.models.split import FullyConnected, Way


@dataclass(frozen=True)
class Piece:
    """A part of a layer whose units see the same units of the layer below."""

    rows: slice
    """Of the outputs that a worker has."""
    columns: slice
    """Of the inputs that the worker has at hand."""


@dataclass(frozen=True)
class LayerSlice:
    """The part of a layer that one worker has."""

    layer: FullyConnected
    way: Way
    cuts: tuple[slice, ...]
    """How the outputs or inputs are divided, by worker."""
    rank: int
    blocks: int = 1
    """g: where more than 1, a layer divided by outputs has only the weights within g blocks on its diagonal."""
    projection: "LayerSlice | None" = None
    """Of other blocks' inputs, where the layer sees these through one."""

    @property
    def mine(self) -> slice:
        """Of the outputs or inputs."""
        return self.cuts[self.rank]

    @cached_property
    def own_blocks(self) -> range:
        """The blocks that the worker has, or the one of which it has a part."""
        size = len(self.cuts)
        if size <= self.blocks:
            return range(*block(self.blocks, self.rank, size))
        index = next(index for index in range(self.blocks) if self.rank in _workers_of(index, size, self.blocks))
        return range(index, index + 1)

    @property
    def peers(self) -> range:
        """The workers that have the inputs which the worker's outputs see."""
        size = len(self.cuts)
        if size <= self.blocks:
            return range(self.rank, self.rank + 1)
        return _workers_of(self.own_blocks.start, size, self.blocks)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """One for each block that the worker has of a restricted layer; their weights lie below each other."""
        own = self.mine.stop - self.mine.start
        if self.way == "inputs":
            return (Piece(slice(0, self.layer.outputs), slice(0, own)),)
        count, columns = len(self.own_blocks), self.layer.sees or self.layer.inputs // self.blocks
        rows = own // count
        return tuple(
            Piece(slice(i * rows, (i + 1) * rows), slice(i * columns, (i + 1) * columns)) for i in range(count)
        )

    def views(self, name: str, parameter: Tensor) -> list[Tensor]:
        """Views of one of the layer's parameters that make up this worker's part of it, one below the other.

        If the layer is divided by inputs, only the first worker has the bias, and adds it to its partial sum.
        """
        if self.projection is not None and name in self.projection.layer.parameters:
            return self.projection.views(name, parameter)
        is_bias = name == f"{self.layer.name}.bias"
        if self.way == "inputs":
            return [parameter[: None if self.rank == 0 else 0] if is_bias else parameter[:, self.mine]]
        own = parameter[self.mine]
        if is_bias or self.blocks == 1 or self.layer.sees is not None:
            return [own]
        wide = self.layer.inputs // self.blocks
        pieces = zip(self.own_blocks, self.pieces, strict=True)
        return [own[piece.rows, index * wide : (index + 1) * wide] for index, piece in pieces]

    def taken(self, name: str, parameter: Tensor) -> Tensor:
        """This worker's part of one of the layer's parameters, copied where it lies in several places."""
        views = self.views(name, parameter)
        return views[0] if len(views) == 1 else torch.cat(views)

    def put(self, name: str, own: Tensor, parameter: Tensor) -> None:
        """Copy this worker's part to its places in one of the layer's parameters."""
        first = 0
        for view in self.views(name, parameter):
            view.copy_(own[first : first + len(view)])
            first += len(view)


def blocks_of(head: Sequence[FullyConnected], blocks: int) -> tuple[int, ...]:
    """The blocks of each layer: only those between the first and the last are restricted."""
    return tuple(blocks if 0 < i < len(head) - 1 else 1 for i in range(len(head)))


def cut_units(width: int, size: int, blocks: int = 1) -> tuple[slice, ...]:
    """The units of a layer that each of `size` workers has, as nearly equal as possible.

    Up to g workers have whole blocks; more of them share a block, and none has units of two.
    """
    wide, cuts = width // blocks, list[slice]()
    if size < blocks:
        return tuple(slice(a * wide, b * wide) for a, b in (block(blocks, k, size) for k in range(size)))
    for index in range(blocks):
        workers = len(_workers_of(index, size, blocks))
        parts = (block(wide, k, workers) for k in range(workers))
        cuts += (slice(index * wide + a, index * wide + b) for a, b in parts)
    return tuple(cuts)


def _workers_of(index: int, size: int, blocks: int) -> range:
    """Those of `size` workers that share a block, where there are at least as many as blocks."""
    return range(*block(size, index, blocks))


def layer_slices(
    head: Sequence[FullyConnected], ways: Sequence[Way], rank: int, size: int, blocks: int = 1
) -> list[LayerSlice]:
    """The slice of each layer that worker `rank` of `size` has. blocks: g of the layers between the first and the last,
    which divides their widths."""
    found, last = [], len(head) - 1
    for i, (layer, way, restricted) in enumerate(zip(head, ways, blocks_of(head, blocks), strict=True)):
        width = layer.outputs if way == "outputs" else layer.inputs
        cuts = cut_units(width, size, 1 if i == last and way == "outputs" else blocks)
        projection = None
        if through := layer.projection:
            projection = LayerSlice(through, "outputs", cut_units(through.outputs, size, blocks), rank, blocks)
        found.append(LayerSlice(layer, way, cuts, rank, restricted, projection))
    return found


def shapes(own: Sequence[LayerSlice]) -> dict[str, tuple[int, ...]]:
    """The shape of this worker's part of each parameter, by name."""
    found = {}
    for part in own:
        for name, full in part.layer.shapes.items():
            found[name] = tuple(part.taken(name, torch.empty(full, device="meta")).shape)
    return found


def restrict(head: Sequence[FullyConnected], blocks: int, named: dict[str, Tensor], as_built: bool) -> None:
    """Zero the weights between the blocks, which the model does not have.

    Args:
        head: All its layers.
        blocks: g, which divides their widths.
        named: Parameters by name; changed in place.
        as_built: Whether the other weights are made sqrt(g) times as large, so that a sum over 1/g of the inputs begins
            with the variance of the whole layer's.
    """
    for part in layer_slices(head, ["outputs"] * len(head), 0, 1, blocks):
        name = f"{part.layer.name}.weight"
        if part.blocks > 1 and name in named:
            kept = part.taken(name, named[name]) * (blocks**0.5 if as_built else 1.0)
            named[name].zero_()
            part.put(name, kept, named[name])
