"""What workers send each other of the rows of a minibatch, and of their gradients on the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from trainers.algorithms.spatial.layers import RowLayer
from trainers.algorithms.spatial.norm import normalise
from trainers.algorithms.spatial.rows import common, rows_of
from trainers.collectives.protocol import Collectives
from trainers.spans import span

Region = tuple[slice, slice, slice]
"""Examples, channels and rows of a tensor (N, C, H, W): all channels."""


@dataclass(frozen=True)
class Move:
    """How a tensor (N, C, H, W) is divided anew among the workers."""

    examples: int
    rows: int
    """That this worker has afterwards."""
    give: tuple[Region, ...]
    """To each worker, of what this one has."""
    take: tuple[Region, ...]
    """From each worker, in what this one has afterwards."""
    travels: bool = True
    """Whether anything goes from any worker to another; the same on all of them."""
    fill: float = 0.0
    """What is in rows that nobody gives."""
    is_halo: bool = False
    """Whether the others see rows besides their own; else each place is given to one worker."""

    @property
    def padding(self) -> tuple[slice, ...]:
        """The rows that nobody gives, above and below the others."""
        return _around([rows for _, _, rows in self.take], self.rows) if self.is_halo else ()

    def unseen(self, me: int, height: int) -> tuple[slice, ...]:
        """Of the `height` rows of a halo's input, those that worker `me`, whose they are, does not need itself."""
        return _around([self.give[me][2]], height) if self.is_halo else ()


class Moved(torch.autograd.Function):
    """The move of a tensor; its backward pass moves the gradient back, and adds what several workers were given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, move: Move, collectives: Collectives) -> Tensor:
        ctx.shape, ctx.layout, ctx.move, ctx.collectives = x.shape, _layout_of(x), move, collectives
        moved = _empty((move.examples, x.shape[1], move.rows, x.shape[3]), x, ctx.layout)
        for rows in move.padding:
            moved[:, :, rows] = move.fill
        for region, given in zip(move.take, _given(x, move.give, moved, move.take, move, collectives), strict=True):
            moved[region] = given
        return moved

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), move, me = upstream, ctx.move, ctx.collectives.rank
        found = _empty(ctx.shape, gradient, ctx.layout)
        parts = _given(gradient, move.take, found, move.give, move, ctx.collectives)
        found[move.give[me]] = parts[me]
        for rows in move.unseen(me, found.shape[2]):
            found[:, :, rows] = 0
        for k, (region, given) in enumerate(zip(move.give, parts, strict=True)):
            if k != me and move.is_halo:  # the others have seen rows of this worker's own, or rows that it has not seen
                found[region] += given
            elif k != me:
                found[region] = given
        return found, None, None


class RowExchange:
    """The moves of one minibatch, whose examples belong to some of the workers; in rows, all have some of each."""

    def __init__(self, collectives: Collectives, counts: Sequence[int]) -> None:
        """counts: Examples of each worker."""
        self.collectives, self.counts = collectives, counts
        self.rank, self.size = collectives.rank, collectives.size
        ends = accumulate(counts, initial=0)
        self.theirs = [slice(first, stop) for first, stop in pairwise(ends)]  # in the order of the workers

    def by_rows(self, images: Tensor) -> Tensor:
        """This worker's rows (N, C, h, W) of all examples, from its own examples whole (n, C, H, W)."""
        height, mine = images.shape[2], slice(0, self.counts[self.rank])
        return self._moved(images, Move(
            sum(self.counts),
            len(rows_of(height, self.rank, self.size)),
            tuple(_region(mine, rows_of(height, k, self.size)) for k in range(self.size)),
            tuple(_region(examples, range(len(rows_of(height, self.rank, self.size)))) for examples in self.theirs),
        ))  # fmt: skip

    def by_examples(self, rows: Tensor, height: int) -> Tensor:
        """This worker's own examples whole (n, C, H, W), from its rows (N, C, h, W) of all. height: H."""
        mine = slice(0, self.counts[self.rank])
        return self._moved(rows, Move(
            self.counts[self.rank],
            height,
            tuple(_region(examples, range(rows.shape[2])) for examples in self.theirs),
            tuple(_region(mine, rows_of(height, k, self.size)) for k in range(self.size)),
        ))  # fmt: skip

    def through(self, layer: RowLayer, x: Tensor) -> Tensor:
        """This worker's rows (N, C', h', W') of what a layer makes of its rows (N, C, h, W) and its neighbours'."""
        move = self._halo(layer, x.shape[0])
        seen = self._moved(x, move)
        with saved_tensors_hooks(*_without_own(seen, x, move.give[self.rank], move.take[self.rank][2])):
            return layer.compute(seen)

    def normalised(self, norm: nn.BatchNorm2d, height: int, x: Tensor) -> Tensor:
        """This worker's rows of what a batch norm makes of the whole minibatch. height: Rows that all have together."""
        count = x.shape[0] * height * x.shape[3]
        return normalise(norm, x, count, self.collectives, updates=self.counts[self.rank] > 0)

    def _halo(self, layer: RowLayer, examples: int) -> Move:
        own = [rows_of(layer.height, k, self.size) for k in range(self.size)]
        seen = [layer.window.seen(rows_of(layer.outputs, k, self.size)) for k in range(self.size)]
        me, every = self.rank, slice(0, examples)
        return Move(
            examples,
            len(seen[me]),
            tuple(_region(every, common(own[me], rows), own[me].start) for rows in seen),
            tuple(_region(every, common(rows, seen[me]), seen[me].start) for rows in own),
            travels=layer.window.halo_rows(layer.height, self.size) > 0,
            fill=layer.fill,
            is_halo=True,
        )

    def _moved(self, x: Tensor, move: Move) -> Tensor:
        moved: Tensor = Moved.apply(x, move, self.collectives)
        return moved


def _around(rows: Sequence[slice], height: int) -> tuple[slice, ...]:
    """Of [0, height), what lies above and below these rows, between which there are no others."""
    parts = [part for part in rows if part.start < part.stop]
    first, stop = min((part.start for part in parts), default=0), max((part.stop for part in parts), default=0)
    return tuple(part for part in (slice(0, first), slice(stop, height)) if part.start < part.stop)


def _region(examples: slice, rows: range, origin: int = 0) -> Region:
    """Rows that are counted from `origin`."""
    return examples, slice(None), slice(rows.start - origin, rows.stop - origin)


def _given(
    x: Tensor, give: Sequence[Region], into: Tensor, take: Sequence[Region], move: Move, collectives: Collectives
) -> list[Tensor]:
    """What each worker gives this one, which gives them regions of `x`; shaped as the regions of `into`."""
    me, device = collectives.rank, collectives.device
    nothing = torch.empty(0, device=device)
    send = [nothing if k == me else x[region].reshape(-1).to(device) for k, region in enumerate(give)]
    shapes = [into[region].shape for region in take]
    receive = [nothing if k == me else torch.empty(shape.numel(), device=device) for k, shape in enumerate(shapes)]
    if move.travels:
        with span("exchange"):
            collectives.all_to_all(send, receive).wait()
    if move.is_halo:
        collectives.meter.count_halos(sum(rows.nbytes for rows in send))
    given = [rows.view(shape).to(x.device) for rows, shape in zip(receive, shapes, strict=True) if rows is not nothing]
    given.insert(me, x[give[me]])
    return given


def _without_own(
    seen: Tensor, x: Tensor, own: Region, place: slice
) -> tuple[Callable[[Tensor], Tensor | None], Callable[[Tensor | None], Tensor]]:
    """How autograd keeps what a layer has seen: of the rows that came and the padding a copy, and of the worker's own,
    which are most of them, the tensor `x` in which they lie anyway, kept for the layer before.

    own: Where they lie there. place: In which rows of `seen`.
    """
    address, shape, version = seen.data_ptr(), seen.shape, x._version
    above, below = seen[:, :, : place.start].clone(), seen[:, :, place.stop :].clone()
    rows, layout = x.detach()[own], _layout_of(seen)

    def pack(tensor: Tensor) -> Tensor | None:
        return None if (tensor.data_ptr(), tensor.shape) == (address, shape) else tensor

    def unpack(kept: Tensor | None) -> Tensor:
        if kept is not None:
            return kept
        assert rows._version == version, "rows that a backward pass needs were changed in place"
        whole = _empty(shape, rows, layout)
        whole[:, :, : place.start], whole[:, :, place], whole[:, :, place.stop :] = above, rows, below
        return whole

    return pack, unpack


def _layout_of(x: Tensor) -> torch.memory_format:
    """Whether channels lie beside each other, as fast kernels on a CPU want them, or not. In the layout of what came in
    everything stays: a copy into another one costs as much as a layer, and slows those after it."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _empty(shape: Sequence[int], like: Tensor, layout: torch.memory_format) -> Tensor:
    """(N, C, H, W), with anything in it."""
    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device, memory_format=layout)
