"""A version of the parameters in parts, as workers and shards hand it over, and what is put together from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.models.module_buffers import Named, in_common
from trainers.models.products.choice import UNMEASURED, Choice
from trainers.parameter_server.groups import GroupSlice
from trainers.training.checkpoint import Checkpoint
from trainers.training.messages import RunLayout
from trainers.training.position import Position

if TYPE_CHECKING:  # a shard's process loads no data and no model
    from trainers.training.loop import ModelVersion
    from trainers.training.setup import Setup

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class VersionPart:
    """A slice of the parameters, (n,) float32, with all that belongs to it."""

    start: int
    """Where it begins in the flat vector."""
    params: Vector
    state: dict[str, Vector]
    """Of the update rule, by name; (n,) each."""
    examples: int
    """Applied so far."""
    learning_rate: float
    """Of the last update."""
    applied: tuple[tuple[int, ...], ...] = ()
    """What was pushed to it: rows of epoch, group, first and last minibatch."""
    versions: tuple[tuple[int, int], ...] = ()
    """Number of each group's version."""


def part_of_worker(version: ModelVersion) -> VersionPart:
    """All of a version that a worker has; on the CPU the vectors are the worker's own memory."""
    params, state, position = version.whole.params, version.whole.state, version.position
    named = {name: vector.cpu().numpy() for name, vector in state.items()}
    return VersionPart(0, params.cpu().numpy(), named, position.examples, position.learning_rate)


def part_of_shard(pieces: Iterable[tuple[int, GroupSlice]]) -> VersionPart:
    """A copy of a shard's slice, put together from its pieces of all groups."""
    groups, held = zip(*pieces, strict=True)
    shards = [piece.shard for piece in held]
    first = shards[0]
    return VersionPart(
        start=held[0].span.start,
        params=np.concatenate([shard.params.numpy() for shard in shards]),
        state={name: np.concatenate([shard.state[name].numpy() for shard in shards]) for name in first.state},
        examples=min(shard.examples for shard in shards),
        learning_rate=first.learning_rate,
        applied=applied_to(held),
        versions=tuple((group, shard.version) for group, shard in zip(groups, shards, strict=True)),
    )


def first_part(layout: RunLayout, index: int, start: dict[str, Vector]) -> VersionPart:
    """A shard's slice where a run begins or is resumed.

    Args:
        layout: The run's.
        index: The shard's.
        start: Vectors (P,): the parameters under `params`, the rule's states under their names.
    """
    cut, position = slice(*layout.shards[index]), layout.position
    return VersionPart(
        start=cut.start,
        params=start["params"][cut],
        state={name: vector[cut] for name, vector in start.items() if name != "params"},
        examples=position.examples,
        learning_rate=position.learning_rate,
        applied=position.applied[index] if index < len(position.applied) else (),
    )


def applied_to(pieces: Iterable[GroupSlice]) -> tuple[tuple[int, ...], ...]:
    """What was applied to a shard's slice: rows of epoch, group, first and last minibatch."""
    return tuple(tuple(row) for piece in pieces for row in piece.shard.applied.to_json())


def assembled(numel: int, parts: Sequence[VersionPart]) -> tuple[Tensor, dict[str, Tensor]]:
    """Parameters and states, (P,) each, from all parts of a version."""
    params = torch.zeros(numel)
    state = {name: torch.zeros(numel) for part in parts for name in part.state}
    for part in parts:
        cut = slice(part.start, part.start + len(part.params))
        params[cut] = torch.from_numpy(np.array(part.params))
        for name, vector in part.state.items():
            state[name][cut] = torch.from_numpy(np.array(vector))
    return params, state


def checkpoint_of(
    setup: Setup,
    parts: Sequence[VersionPart],
    buffers: dict[int, Named],
    position: Position,
    products: Choice = UNMEASURED,
) -> Checkpoint:
    """The checkpoint of a version.

    Args:
        setup: Of the run.
        parts: All of them.
        buffers: Buffers by virtual rank and name.
        position: Without what the shards applied, which stands in the parts.
        products: Which library makes which product.
    """
    params, state = assembled(setup.layout.numel, parts)
    layout, rate = setup.layout, parts[0].learning_rate  # the shards of an asynchronous run may be an update apart
    position = replace(position, learning_rate=rate, applied=tuple(part.applied for part in parts))
    named = {name: layout.named(vector) for name, vector in state.items()}
    model = setup.replica.state_of(layout.named(params) | in_common(buffers))
    return Checkpoint(position, setup.spec.model_dump(mode="json"), model, named, buffers, products)
