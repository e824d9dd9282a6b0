"""Where each parameter lies in the flat vector, and where the flat vector is cut into shards."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from trainers.collectives.buckets import Bucket
from trainers.optim.parameter import Parameter, shaped
from trainers.optim.slices import ALIGN, PARAMETER_ALIGN, aligned, cuts_at, spans

SHARD_ALIGN = 4096
"""Large shards begin at multiples of this many elements: a page on any machine, so that adjacent shards can be
mapped."""


LARGE = 64 * SHARD_ALIGN
"""Elements from which on a shard counts as large: aligning it to pages makes shards unequal by less than 2 %."""

Named = list[tuple[str, tuple[int, ...]]]
"""Names and shapes of parameters."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and offsets (in elements) of all trained parameters in a vector of `numel` float32; gaps stay 0."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    shards: tuple[slice, ...]
    numel: int
    channels_last: bool = False
    """Whether convolutions' weights (O, I, H, W) lie as (O, H, W, I)."""

    def views(self, flat: Tensor) -> list[Tensor]:
        """Each parameter as a view of `flat` (numel,), in the order of `names`."""
        return [
            shaped(flat[offset : offset + _size(shape)], shape, self.channels_last)
            for offset, shape in zip(self.offsets, self.shapes, strict=True)
        ]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Each parameter by name, as a view of `flat` (numel,)."""
        return dict(zip(self.names, self.views(flat), strict=True))

    def parameters(self, hidden: Iterable[str]) -> tuple[Parameter, ...]:
        """All of them in the order of the vector; hidden: the names of those that are (`Parameter.is_hidden`)."""
        matrices = set(hidden)
        return tuple(
            Parameter(offset, shape, name in matrices, self.channels_last)
            for offset, name, shape in sorted(zip(self.offsets, self.names, self.shapes, strict=True))
        )

    def spans_of(self, names: Iterable[str]) -> tuple[slice, ...]:
        """The spans of the named parameters, in order; adjacent ones are merged, with the gap between them."""
        chosen, found = set(names), list[slice]()
        for offset, name, shape in sorted(zip(self.offsets, self.names, self.shapes, strict=True)):
            if name in chosen:
                stop = aligned(offset + _size(shape), PARAMETER_ALIGN)
                begin = found.pop().start if found and found[-1].stop == offset else offset
                found.append(slice(begin, stop))
        return tuple(found)

    @cached_property
    def gaps(self) -> Tensor:
        """(numel,) of bool: where no parameter lies."""
        found = torch.ones(self.numel, dtype=torch.bool)
        for offset, shape in zip(self.offsets, self.shapes, strict=True):
            found[offset : offset + _size(shape)] = False
        return found

    def names_in(self, *parts: slice) -> tuple[str, ...]:
        """The parameters that begin in one of these parts of the vector, in the vector's order."""
        in_order = sorted(zip(self.offsets, self.names, strict=True))
        return tuple(name for offset, name in in_order if any(part.start <= offset < part.stop for part in parts))

    def part(self, names: Iterable[str]) -> "Layout":
        """The layout of some of the parameters in a vector of their own, in the same order."""
        chosen = set(names)
        picked = [(name, shape) for name, shape in zip(self.names, self.shapes, strict=True) if name in chosen]
        return _contiguous(picked, 1, self.channels_last)

    def runs(self, owners: Mapping[str, int]) -> tuple[slice, ...]:
        """The vector cut wherever the owner of the parameters changes; those without an owner join the ones before."""
        found, mine = [0], None
        for offset, name in sorted(zip(self.offsets, self.names, strict=True)):
            owner = owners.get(name, mine)
            if mine is not None and owner != mine:
                found.append(offset)
            mine = owner
        return tuple(slice(start, stop) for start, stop in itertools.pairwise([*found, self.numel]))

    def fragments(self, count: int) -> list[slice]:
        """The vector cut between parameters into so many parts, as equal as these allow; none is empty where there are
        as many parameters."""
        return cuts_at([*sorted(self.offsets), self.numel], count)

    def buckets(self, least_bytes: int) -> tuple[Bucket, ...]:
        """The vector cut between parameters into buckets of at least `least_bytes`, in order; a smaller remainder is
        merged into the last bucket."""
        ends = [*sorted(self.offsets)[1:], self.numel]
        found, begin, names = list[Bucket](), 0, list[str]()
        for (_, name), end in zip(sorted(zip(self.offsets, self.names, strict=True)), ends, strict=True):
            names.append(name)
            if 4 * (end - begin) >= least_bytes or end == self.numel:
                found.append(Bucket(slice(begin, end), tuple(names)))
                begin, names = end, []
        if len(found) > 1 and 4 * (found[-1].span.stop - found[-1].span.start) < least_bytes:
            last, before = found.pop(), found.pop()
            found.append(Bucket(slice(before.span.start, last.span.stop), before.names + last.names))
        return tuple(found)

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """Copy the named tensors into a flat vector (numel,) float32 on the CPU. All parameters must be named."""
        return self.spread({name: named[name] for name in self.names})

    def spread(self, named: dict[str, Tensor]) -> Tensor:
        """As `flatten`, from some of the parameters; the elements of the others are zero."""
        flat = torch.zeros(self.numel)
        for name, view in self.named(flat).items():
            if name in named:
                view.copy_(named[name])
        return flat


def lay_out(
    model: nn.Module,
    num_shards: int = 1,
    placement: Literal["balanced", "round_robin"] = "balanced",
    channels_last: bool = False,
    keeps_parameters_whole: bool = False,
) -> Layout:
    """The layout of those of a model's parameters that are trained, for S shards.

    `balanced` cuts the vector into equal parts. `round_robin` assigns whole variables to the shards in turn (paper 3,
    section IV.C); the variables of a shard are then adjacent in the vector.

    keeps_parameters_whole: Whether `balanced` cuts between parameters only, so nearly equal as these allow.

    Raises:
        ValueError: The model is too small for so many shards.
    """
    parameters = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
    if num_shards > 1 and (placement == "round_robin" or keeps_parameters_whole):
        if len(parameters) < num_shards:
            few = f"the model has {len(parameters)} variables, which are not divided; use at most as many shards"
            raise ValueError(few if keeps_parameters_whole else f"{few}, or placement balanced")
        if placement == "round_robin":
            return _in_shards([parameters[shard::num_shards] for shard in range(num_shards)], channels_last)
        return _in_shards(_balanced(parameters, num_shards), channels_last)
    layout = _contiguous(parameters, num_shards, channels_last)
    if layout.numel // ALIGN < num_shards:
        raise ValueError(f"the model is too small for {num_shards} shards; use at most {layout.numel // ALIGN}")
    return layout


def lay_out_vectors(shapes: dict[str, tuple[int, ...]]) -> Layout:
    """The layout of tensors by name, one after the other."""
    return _contiguous(list(shapes.items()), 1, channels_last=False)


def _contiguous(parameters: Named, num_shards: int, channels_last: bool) -> Layout:
    offsets, numel = _offsets([shape for _, shape in parameters], 0)
    numel = aligned(numel)
    names, shapes = tuple(n for n, _ in parameters), tuple(s for _, s in parameters)
    cuts = spans(numel, num_shards, SHARD_ALIGN if numel >= LARGE * num_shards else ALIGN)
    return Layout(names, shapes, tuple(offsets), tuple(cuts), numel, channels_last)


def _balanced(parameters: Named, num_shards: int) -> list[Named]:
    offsets, end = _offsets([shape for _, shape in parameters], 0)
    places = [*offsets, end]
    cuts = cuts_at(places, num_shards)
    return [parameters[places.index(cut.start) : places.index(cut.stop)] for cut in cuts]


def _in_shards(shards: list[Named], channels_last: bool) -> Layout:
    """The layout in which each shard has the parameters given for it."""
    names, shapes, offsets, cuts, end = [], [], [], [], 0
    for mine in shards:
        more, stop = _offsets([shape for _, shape in mine], end)
        names += [name for name, _ in mine]
        shapes += [shape for _, shape in mine]
        offsets += more
        cuts.append(slice(end, aligned(stop, SHARD_ALIGN if stop - end >= LARGE else ALIGN)))
        end = cuts[-1].stop
    return Layout(tuple(names), tuple(shapes), tuple(offsets), tuple(cuts), end, channels_last)


def _offsets(shapes: Iterable[tuple[int, ...]], start: int) -> tuple[list[int], int]:
    offsets = []
    for shape in shapes:
        offsets.append(start)
        start = aligned(start + _size(shape), PARAMETER_ALIGN)
    return offsets, start


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
