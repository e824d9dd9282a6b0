"""Model parallelism of the fully connected layers at the end of a model, on one worker (paper 1, section 4).

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
from trainers.collectives.reduction_tree import block
from trainers.models.layout import lay_out_vectors
from trainers.models.losses import LabelLoss, loss_of_shard
from trainers.models.split import FullyConnected, Way
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
    """(B, inputs): outputs of the backbone."""
    labels: Tensor  # (B,) int64
    examples: NDArray[np.int64]  # (B,)
    epoch: int
    own: slice
    """The rows that hold this worker's own examples."""


@dataclass(frozen=True)
class LayerSlice:
    """The part of a layer that one worker has."""

    layer: FullyConnected
    way: Way
    cuts: tuple[slice, ...]
    """How the outputs or inputs are divided, by worker."""
    rank: int

    @property
    def mine(self) -> slice:
        return self.cuts[self.rank]

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """This worker's part of one of the layer's parameters, a view.

        If the layer is divided by inputs, only the first worker has the bias, and adds it to its partial sum.
        """
        if self.way == "outputs":
            return parameter[self.mine]
        if name == f"{self.layer.name}.bias":
            return parameter if self.rank == 0 else parameter[:0]
        return parameter[:, self.mine]


def layer_slices(head: Sequence[FullyConnected], ways: Sequence[Way], rank: int, size: int) -> list[LayerSlice]:
    """The slice of each layer that worker `rank` of `size` has, as nearly equal as possible."""
    found = []
    for layer, way in zip(head, ways, strict=True):
        width = layer.outputs if way == "outputs" else layer.inputs
        cuts = tuple(slice(*block(width, k, size)) for k in range(size))
        found.append(LayerSlice(layer, way, cuts, rank))
    return found


def shapes(own: Sequence[LayerSlice]) -> dict[str, tuple[int, ...]]:
    """The shape of this worker's part of each parameter, by name."""
    found = {}
    for part in own:
        layer = part.layer
        for name in layer.parameters:
            full = (layer.outputs, layer.inputs) if name.endswith(".weight") else (layer.outputs,)
            found[name] = tuple(part.of(name, torch.empty(full, device="meta")).shape)
    return found


class ModelParallelLayers:
    """Forward and backward passes of one worker through its slices of the layers, and their updates."""

    def __init__(self, context: Context, slices: Sequence[Sequence[LayerSlice]]) -> None:
        """slices: those of all workers, by rank."""
        assert context.collectives is not None
        self.collectives, self.replica, self.rule = context.collectives, context.replica, context.optimizer.rule
        self.state_names = context.optimizer.state_names
        self.all_slices, self.slices = slices, slices[self._rank]
        self.layouts = [lay_out_vectors(shapes(own)) for own in slices]
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
        with torch.no_grad():
            with span("forward"):
                passed = self._forward(turn.activities)
                losses, gradient = self._loss(passed[-1][2], turn)
            with span("backward"):
                return self._backward(passed, gradient), losses.sum()

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
            weight, bias = self._parameters(part)
            z = self.replica.products.outputs(x, weight, bias)
            if part.way == "inputs":
                z = self._all_reduce(z)
            with torch.enable_grad():
                a = z.requires_grad_()
                for elementwise in part.layer.after:
                    a = elementwise(a, self._first(part))
            passed.append((x, z, a))
            x = self._all_gather_columns(part, a.detach()) if self._needs_gather(i) else a.detach()
        return passed

    def _backward(self, passed: list[tuple[Tensor, Tensor, Tensor]], da: Tensor) -> Tensor:
        """Accumulate the gradients of the slices; return this worker's contribution to that of the activities."""
        for i, part in reversed(list(enumerate(self.slices))):
            x, z, a = passed[i]
            last = i == len(self.slices) - 1
            if self._needs_gather(i):
                da = self._reduce_scatter_columns(part, da)
            elif part.way == "inputs" and not last:
                da = self._all_reduce(da)
            (dz,) = torch.autograd.grad(a, z, da) if part.layer.after else (da,)
            self._accumulate(part, x, dz)
            da = self.replica.products.input_gradient(dz, self.params[f"{part.layer.name}.weight"])
        self.is_used = False
        return da

    def _accumulate(self, part: LayerSlice, x: Tensor, dz: Tensor) -> None:
        """Add a layer's gradient to the flat gradient vector; the product is written there directly."""
        weight, bias = self.gradients[f"{part.layer.name}.weight"], self.gradients.get(f"{part.layer.name}.bias")
        self.replica.products.weight_gradient(dz, x, weight, add=not self.is_used)
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

    def _needs_gather(self, index: int) -> bool:
        """Whether a layer is divided by outputs and the one after it needs all of them on every worker."""
        following = self.slices[index + 1 : index + 2]
        return self.slices[index].way == "outputs" and any(part.way == "outputs" for part in following)

    def _all_gather_columns(self, part: LayerSlice, a: Tensor) -> Tensor:
        """All columns, (B, outputs), from the (B, own outputs) of each worker."""
        received = [a.new_empty(len(a), cut.stop - cut.start) for cut in part.cuts]
        self.collectives.all_to_all([a] * len(received), received).wait()
        return torch.cat(received, 1)

    def _reduce_scatter_columns(self, part: LayerSlice, da: Tensor) -> Tensor:
        """This worker's columns of (B, outputs), summed over the workers in the order of their ranks."""
        received = [da.new_empty(len(da), part.mine.stop - part.mine.start) for _ in part.cuts]
        self.collectives.all_to_all([da[:, cut] for cut in part.cuts], received).wait()
        total = received[0]
        for contribution in received[1:]:
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

    def _parameters(self, part: LayerSlice) -> tuple[Tensor, Tensor | None]:
        bias = self.params.get(f"{part.layer.name}.bias")
        return self.params[f"{part.layer.name}.weight"], bias if bias is not None and bias.numel() else None

    def _first(self, part: LayerSlice) -> int:
        """Index of the first of a layer's outputs that this worker has."""
        return part.mine.start if part.way == "outputs" else 0

    def _own_part(self, model: Buffers) -> Buffers:
        """This worker's slices of a version of the model, copied."""
        layout, device = self.replica.layout, self.replica.device

        def cut(vector: Tensor) -> Tensor:
            named = layout.named(vector)
            parts = {name: part.of(name, named[name]) for part in self.slices for name in part.layer.parameters}
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
                part.of(name, named[name]).copy_(parts[name])


def _unsqueeze(figures: Tensor) -> Tensor:
    """The figures (f, B) of a single worker, (1, f, B)."""
    return figures[None]
