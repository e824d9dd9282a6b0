"""Model parallelism of the fully connected layers at the end of a model, on one worker (paper 1, section 4), and of the
columns below them, where these are divided too.

A worker's slices of these layers form one flat vector, with the gradient and the optimizer state beside it. Where the
transport has memory that all workers see and that survives the worker that writes it, the vectors lie there and are
double-buffered, so any worker can read the state after the last step that all have finished. Elsewhere no other worker
holds any of a slice, and one version is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.algorithms.base import Context
from trainers.algorithms.hybrid.column_layers import ColumnLayers
from trainers.algorithms.hybrid.slices import LayerSlice, shapes
from trainers.models.layout import lay_out_vectors
from trainers.models.losses import LabelLoss, loss_of_shard
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import block_squares, total
from trainers.optim.slices import ALIGN
from trainers.optim.update import Contribution, SliceUpdate
from trainers.spans import span

CHUNK = 2**22
"""Elements of a slice that are sent at once when the model is gathered: 16 MB."""


@dataclass(frozen=True)
class TurnInput:
    """The examples that pass the fully connected layers together, on all workers."""

    activities: Tensor
    """(B, inputs): outputs of the backbone; or images, (B, C, H, W), where that is divided too."""
    labels: Tensor  # (B,) int64
    examples: NDArray[np.int64]  # (B,)
    epoch: int
    own: slice
    """The rows that hold this worker's own examples."""


class ModelParallelLayers:
    """Forward and backward passes of one worker through its slices of the layers, and their updates."""

    def __init__(
        self, context: Context, slices: Sequence[Sequence[LayerSlice]], below: ColumnLayers | None = None
    ) -> None:
        """slices: those of all workers, by rank. below: what the activities go through first, if it is divided too."""
        assert context.collectives is not None
        self.collectives, self.replica, self.rule = context.collectives, context.replica, context.optimizer.rule
        self.state_names = context.optimizer.state_names
        self.slices, self.below = slices[self._rank], below
        columns: Sequence[Sequence[LayerSlice]] = [()] * len(slices) if below is None else below.slices
        self.all_slices = [[*first, *own] for first, own in zip(columns, slices, strict=True)]
        self.layouts = [lay_out_vectors(shapes(own)) for own in self.all_slices]
        self.layout = self.layouts[self._rank]
        device, numel = context.replica.device, self.layout.numel
        model = context.replica.layout
        optimizer = context.optimizer.moved(lambda spans: self.layout.spans_of(model.names_in(*spans)))
        self.update_slice = SliceUpdate(optimizer, numel, device)
        ranks, count = ([self._rank], 1) if not self.collectives.survives_worker else (range(self.collectives.size), 2)
        self.visible = {k: [self._memory(k, i) for i in range(count)] for k in ranks}  # rank -> its versions
        self.versions = self.visible[self._rank]
        for mine, first in zip(self.versions[0].vectors, self._own_part(context.start.buffers).vectors, strict=True):
            mine.copy_(first)
        self.named = [self.layout.named(version.params) for version in self.versions]
        self.clock = 0  # steps that all workers have finished
        self.current = 0  # index of the version with which the next turn computes
        self.gradient = torch.zeros(numel, device=device)
        self.gradients = self.layout.named(self.gradient)
        self.is_used = True  # whether an update has used the gradient, so that the next turn overwrites it

    def train(self, turn: TurnInput) -> tuple[Tensor, Tensor]:
        """One forward and backward pass; accumulates the gradient of the parameters since the last update.

        Returns this worker's contribution to the gradient of the activities, (B, inputs), to be summed over the
        workers, and a loss, (): the sum over the worker's own examples, or, if the last layer consists of independent
        logistic units and is divided among the workers, the sum of its own units' losses over all examples.
        """
        self.replica.draws.set(turn.epoch, turn.examples)
        below, adds = self.below, not self.is_used
        with torch.no_grad():
            with span("forward"):
                x = turn.activities if below is None else below.forward(self.params, turn.activities)
                passed = self._forward(x)
                losses, gradient = self._loss(passed[-1][2], turn)
            with span("backward"):
                gradient = self._backward(passed, gradient)
                if below is not None:
                    below.backward(gradient, self.gradients, adds)
                return gradient, losses.sum()

    def squares(self) -> float:
        """The sum of squares of the gradients accumulated since the last update."""
        return total([block_squares(self.gradient, ALIGN)])

    def update(self, divisor: int, lr: float, correction: float, seen: int, scale: float) -> None:
        """Update the parameters with the gradients accumulated since the last update; scale: of their mean."""
        gradient = TensorGradient(self.gradient)
        contribution = Contribution(gradient, divisor, lr, correction=correction, seen=seen, scale=scale)
        following = (self.clock + 1) % len(self.versions)
        self.update_slice.apply([contribution], self.versions[self.current], self.versions[following])
        self.current, self.is_used = following, True

    def complete_step(self) -> None:
        """Count the step as finished. Called when all workers have made its updates."""
        self.clock += 1

    def copy_local_state(self, into: Buffers, correction: float, lag: int) -> None:
        """Copy the slices of all workers into a version of the model, (P,) each, without communication.

        Only where the transport's memory survives a worker, so that this one sees the others' slices.

        Args:
            into: parameters and optimizer state of the model.
            correction: factor for the states that contain the learning rate.
            lag: 0 for the version after the last finished step, 1 for the one before it.
        """
        for rank, versions in self.visible.items():
            version = versions[(self.clock - lag) % 2]
            self._write_slices(rank, version.params, into.params)
            for name, vector in version.state.items():
                self._write_slices(rank, vector * self._factor(name, correction), into.state[name])

    def gather_state(self, into: Buffers, correction: float) -> None:
        """Gather the slices of all workers on worker 0, into a version of the model. Collective: every worker calls it.

        correction: factor for the states that contain the learning rate.
        """
        version = self.versions[self.current]
        self._gather_vector(version.params, into.params)
        for name, vector in version.state.items():
            self._gather_vector(vector * self._factor(name, correction), into.state[name])

    # -- one turn -------------------------------------------------------------------------------------------------

    def _forward(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each layer its input x (B, inputs), its output z (B, outputs), and a (B, outputs), the output of the
        elementwise layers after it. Of a divided tensor this worker has only its part."""
        passed = []
        for i, part in enumerate(self.slices):
            x = self._seen(part, x)
            z = self._outputs(part, x)
            if part.way == "inputs":
                z = self._all_reduce(z)
            with torch.enable_grad():
                a = z.requires_grad_()
                for elementwise in part.layer.after:
                    a = elementwise(a, self._first(part))
            passed.append((x, z, a))
            x = self._all_gather_columns(part, a.detach(), peers) if (peers := self._peers(i)) else a.detach()
        return passed

    def _backward(self, passed: list[tuple[Tensor, Tensor, Tensor]], da: Tensor) -> Tensor:
        """Accumulate the gradients of the slices; return this worker's contribution to that of the activities."""
        for i, part in reversed(list(enumerate(self.slices))):
            x, z, a = passed[i]
            last = i == len(self.slices) - 1
            if peers := self._peers(i):
                da = self._reduce_scatter_columns(part, da, peers)
            elif part.way == "inputs" and not last:
                da = self._all_reduce(da)
            (dz,) = torch.autograd.grad(a, z, da) if part.layer.after else (da,)
            self._accumulate(part, x, dz)
            da = self._gradient_of_units(part, x, self._input_gradient(part, dz))
        self.is_used = False
        return da

    def _seen(self, part: LayerSlice, units: Tensor) -> Tensor:
        """What this worker's outputs of a layer see, from the units of its own blocks below, (B, units).

        These themselves, or where the layer is projected, for each of the worker's blocks b, one beside the other, h_b
        and the projections P_k h_k of all other blocks k, in the order of the blocks. The projections travel.
        """
        if part.projection is None:
            return units
        own = self._outputs(part.projection, units)
        sent = self._all_gather_columns(part.projection, own, range(self.collectives.size))  # (B, g r)
        rank, found = sent.shape[1] // part.blocks, list[Tensor]()
        for b, piece in zip(part.own_blocks, part.projection.pieces, strict=True):
            found += [sent[:, : b * rank], units[:, piece.columns], sent[:, (b + 1) * rank :]]
        return torch.cat(found, 1)

    def _gradient_of_units(self, part: LayerSlice, seen: Tensor, gradient: Tensor) -> Tensor:
        """This worker's contribution to the gradient of the units of its blocks, (B, units), from that to the gradient
        of what `_seen` gave; accumulates the gradients of the projections."""
        if part.projection is None:
            return gradient
        sent = gradient.new_zeros(len(gradient), part.projection.layer.outputs)  # (B, g r), of all blocks' projections
        rank, wide = sent.shape[1] // part.blocks, part.layer.inputs // part.blocks
        units, found = list[Tensor](), list[Tensor]()
        for b, piece in zip(part.own_blocks, part.pieces, strict=True):
            of_block, own = gradient[:, piece.columns], slice(b * rank, b * rank + wide)
            sent[:, : b * rank] += of_block[:, : own.start]
            sent[:, (b + 1) * rank :] += of_block[:, own.stop :]
            units.append(seen[:, piece.columns][:, own])
            found.append(of_block[:, own])
        projected = self._reduce_scatter_columns(part.projection, sent, range(self.collectives.size))
        self._accumulate(part.projection, torch.cat(units, 1), projected)
        return torch.cat(found, 1) + self._input_gradient(part.projection, projected)

    def _outputs(self, part: LayerSlice, x: Tensor) -> Tensor:
        """A layer's outputs, (B, own outputs), or its partial sums of all of them, from the inputs at hand."""
        weight, bias = self.params[f"{part.layer.name}.weight"], self.params.get(f"{part.layer.name}.bias")
        bias = bias if bias is not None and bias.numel() else None
        multiply = self.replica.products.outputs
        if len(part.pieces) == 1:
            return multiply(x, weight, bias)
        found = [
            multiply(x[:, piece.columns], weight[piece.rows], None if bias is None else bias[piece.rows])
            for piece in part.pieces
        ]
        return torch.cat(found, 1)

    def _input_gradient(self, part: LayerSlice, dz: Tensor) -> Tensor:
        """This worker's contribution to the gradient of the inputs at hand, from that of its outputs."""
        weight, multiply = self.params[f"{part.layer.name}.weight"], self.replica.products.input_gradient
        found = [multiply(_columns(dz, piece.rows), weight[piece.rows]) for piece in part.pieces]
        return found[0] if len(found) == 1 else torch.cat(found, 1)

    def _accumulate(self, part: LayerSlice, x: Tensor, dz: Tensor) -> None:
        """Add a layer's gradient to the flat gradient vector; the product is written there directly."""
        weight, bias = self.gradients[f"{part.layer.name}.weight"], self.gradients.get(f"{part.layer.name}.bias")
        for piece in part.pieces:
            dy, seen = _columns(dz, piece.rows), _columns(x, piece.columns)
            self.replica.products.weight_gradient(dy, seen, weight[piece.rows], add=not self.is_used)
        if bias is not None and bias.numel():
            bias.mul_(0 if self.is_used else 1).add_(dz.sum(0))

    def _loss(self, logits: Tensor, turn: TurnInput) -> tuple[Tensor, Tensor]:
        assert isinstance(self.replica.objective, LabelLoss)
        last, loss = self.slices[-1], self.replica.objective.name
        divided = last.way == "outputs"
        all_gather = self._all_gather if divided else _unsqueeze
        losses, gradient = loss_of_shard(loss, logits.detach(), turn.labels, self._first(last), all_gather)
        return (losses if divided and loss == "logistic" else losses[turn.own]), gradient

    # -- communication --------------------------------------------------------------------------------------------

    def _peers(self, index: int) -> range:
        """The workers among which the outputs of a layer travel, because those of the next one see them; empty where
        each has what it needs."""
        following = next(iter(self.slices[index + 1 : index + 2]), None)
        if self.slices[index].way == "inputs" or following is None or following.way == "inputs":
            return range(0)
        return range(0) if following.blocks >= self.collectives.size else following.peers

    def _all_gather_columns(self, part: LayerSlice, a: Tensor, peers: range) -> Tensor:
        """The columns that all peers have, (B, units), from the (B, own outputs) of each of them."""
        widths = [cut.stop - cut.start if k in peers else 0 for k, cut in enumerate(part.cuts)]
        received = [a.new_empty(len(a), width) for width in widths]
        self.collectives.all_to_all([a if k in peers else a[:, :0] for k in range(len(widths))], received).wait()
        return torch.cat([received[k] for k in peers], 1)

    def _reduce_scatter_columns(self, part: LayerSlice, da: Tensor, peers: range) -> Tensor:
        """This worker's columns of (B, units), summed over the peers in the order of their ranks."""
        first, own = part.cuts[peers.start].start, part.mine.stop - part.mine.start
        received = [da.new_empty(len(da), own if k in peers else 0) for k in range(len(part.cuts))]
        spans = [(cut.start - first, cut.stop - first) if k in peers else (0, 0) for k, cut in enumerate(part.cuts)]
        self.collectives.all_to_all([da[:, a:b] for a, b in spans], received).wait()
        total, *others = (received[k] for k in peers)
        for contribution in others:
            total.add_(contribution)
        return total

    def _all_reduce(self, part: Tensor) -> Tensor:
        """The sum over the workers of (B, outputs), on every worker, in place."""
        self.collectives.all_reduce_sum(part.view(-1)).wait()
        return part

    def _all_gather(self, figures: Tensor) -> Tensor:
        """The figures (f, B) of all workers, (K, f, B)."""
        gathered = figures.new_empty(self.collectives.size, *figures.shape)
        self.collectives.all_to_all([figures] * len(gathered), list(gathered)).wait()
        return gathered

    # -- parameters -----------------------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Tensor]:
        """This worker's part of each parameter, in the version with which the next turn computes."""
        return self.named[self.current]

    @property
    def _rank(self) -> int:
        return self.collectives.rank

    def _memory(self, rank: int, index: int) -> Buffers:
        """Memory for one version of a worker's slices."""

        def vector(name: str) -> Tensor:
            return self.collectives.replicated(f"model-parallel-{rank}-{name}-{index}", self.layouts[rank].numel)

        return Buffers(vector("params"), {name: vector(name) for name in self.state_names})

    def _factor(self, name: str, correction: float) -> float:
        return correction if name in self.rule.rate_names else 1.0

    def _first(self, part: LayerSlice) -> int:
        """Index of the first of a layer's outputs that this worker has."""
        return part.mine.start if part.way == "outputs" else 0

    def _own_part(self, model: Buffers) -> Buffers:
        """This worker's slices of a version of the model, copied."""
        layout, device = self.replica.layout, self.replica.device

        def cut(vector: Tensor) -> Tensor:
            named = layout.named(vector)
            own = self.all_slices[self._rank]
            parts = {name: part.taken(name, named[name]) for part in own for name in part.layer.parameters}
            return self.layout.flatten(parts).to(device)

        return Buffers(cut(model.params), {name: cut(vector) for name, vector in model.state.items()})

    def _gather_vector(self, vector: Tensor, into: Tensor) -> None:
        """Gather a vector of all workers' slices on worker 0, in chunks, and write it into the model's vector (P,)."""
        at_root = self._rank == 0
        found = [vector.new_empty(layout.numel if at_root else 0) for layout in self.layouts]
        nothing = vector.new_empty(0)
        for start in range(0, max(layout.numel for layout in self.layouts), CHUNK):
            send = [vector[start : start + CHUNK] if k == 0 else nothing for k in range(len(found))]
            self.collectives.all_to_all(send, [part[start : start + CHUNK] for part in found]).wait()
        for k, part in enumerate(found) if at_root else ():
            self._write_slices(k, part, into)

    def _write_slices(self, rank: int, vector: Tensor, into: Tensor) -> None:
        """Write a worker's slices, as one vector, into the model's vector (P,)."""
        named, parts = self.replica.layout.named(into), self.layouts[rank].named(vector)
        for part in self.all_slices[rank]:
            for name in part.layer.parameters:
                part.put(name, parts[name], named[name])


def _unsqueeze(figures: Tensor) -> Tensor:
    """The figures (f, B) of a single worker, (1, f, B)."""
    return figures[None]


def _columns(x: Tensor, columns: slice) -> Tensor:
    """Some of the columns of x; x itself if these are all."""
    return x if columns.stop - columns.start == x.shape[1] else x[:, columns]
