"""One worker's share of the fully connected layers that end a model (paper 1, section 4: model parallelism).

The share is one flat vector, its gradient and the update rule's state beside it. On one node it lies in memory that all
workers see and that outlives whoever writes it, in two versions by turns: then any of them has the whole of the last
step that all have finished. Elsewhere nobody else holds any of it, and one version is enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.algorithms.base import Context
from trainers.losses import loss_of_shard
from trainers.models.products import input_gradient, outputs, weight_gradient
from trainers.models.split import FullyConnected, Way
from trainers.optim.update import Buffers, Contribution, SliceUpdate, Whole
from trainers.store.layout import lay_out_vectors
from trainers.transport.canonical import block

PIECE = 2**22
"""Elements of a share that travel at once when the whole model is put together: 16 MB."""


@dataclass(frozen=True)
class Passing:
    """The examples that all workers take through the fully connected layers together."""

    activities: Tensor
    """(B, inputs) of the last stage of the trunk."""
    labels: Tensor  # (B,) int64
    examples: NDArray[np.int64]  # (B,)
    epoch: int
    own: slice
    """The rows whose examples are this worker's."""


@dataclass(frozen=True)
class Share:
    """What of a layer one worker of several has."""

    layer: FullyConnected
    way: Way
    cuts: tuple[slice, ...]
    """Of the outputs or of the inputs, by worker."""
    rank: int

    @property
    def mine(self) -> slice:
        return self.cuts[self.rank]

    def of(self, name: str, whole: Tensor) -> Tensor:
        """This worker's part of one of the layer's parameters, a view.

        The bias of a layer that is divided by inputs is the first worker's, whose part of the sum carries it.
        """
        if self.way == "outputs":
            return whole[self.mine]
        if name == f"{self.layer.name}.bias":
            return whole if self.rank == 0 else whole[:0]
        return whole[:, self.mine]


def shares(head: Sequence[FullyConnected], ways: Sequence[Way], rank: int, size: int) -> list[Share]:
    """What worker `rank` of `size` has of each layer, as nearly equal as it can be."""
    found = []
    for layer, way in zip(head, ways, strict=True):
        width = layer.outputs if way == "outputs" else layer.inputs
        cuts = tuple(slice(*block(width, k, size)) for k in range(size))
        found.append(Share(layer, way, cuts, rank))
    return found


def shapes(own: Sequence[Share]) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter's part."""
    found = {}
    for share in own:
        layer = share.layer
        for name in layer.parameters:
            whole = (layer.outputs, layer.inputs) if name.endswith(".weight") else (layer.outputs,)
            found[name] = tuple(share.of(name, torch.empty(whole, device="meta")).shape)
    return found


class Head:
    """Passes of one worker through its share of the layers."""

    def __init__(self, context: Context, everyone: Sequence[Sequence[Share]]) -> None:
        """everyone: the shares of all workers, by rank."""
        assert context.collectives is not None
        self.collectives, self.replica, self.rule = context.collectives, context.replica, context.rule
        self.everyone, self.shares = everyone, everyone[self._rank]
        self.layouts = [lay_out_vectors(shapes(own)) for own in everyone]
        self.layout = self.layouts[self._rank]
        device, numel = context.replica.device, self.layout.numel
        exempt = self.layout.spans_of(context.replica.layout.names_in(*context.exempt))
        self.update_slice = SliceUpdate(context.rule, context.weight_decay, numel, device, exempt)
        kept, ranks = 2 if self.collectives.outlives else 1, range(self.collectives.size)
        self.seen = {k: [self._memory(k, i) for i in range(kept)] for k in ranks if kept == 2 or k == self._rank}
        self.versions = self.seen[self._rank]
        for mine, first in zip(self.versions[0].vectors, self._cut(context.start.whole).vectors, strict=True):
            mine.copy_(first)
        self.named = [self.layout.named(version.params) for version in self.versions]
        self.clock = self.at = 0  # steps that all have finished; the version that the next turn computes with
        self.gradient = torch.zeros(numel, device=device)
        self.gradients = self.layout.named(self.gradient)
        self.is_fresh = True  # whether the gradient in memory has been used up

    def train(self, turn: Passing) -> tuple[Tensor, Tensor]:
        """One forward and backward pass; the gradient is added to those since the last update.

        Returns this worker's part of the gradient of the activities, (B, inputs), to be summed over the workers, and
        the sum of the losses of its own examples, (); for independent logistic units that are divided among the workers
        what its units add to the losses of all examples.
        """
        self.replica.draws.set(turn.epoch, turn.examples)
        with torch.no_grad():
            passed = self._forward(turn.activities)
            losses, gradient = self._loss(passed[-1][2], turn)
            return self._backward(passed, gradient), losses.sum()

    def update(self, divisor: int, lr: float, correction: float) -> None:
        """Update from the gradients summed since the last update, towards the version after this step."""
        contribution = Contribution(Whole(self.gradient), divisor, lr, correction=correction)
        following = (self.clock + 1) % len(self.versions)
        self.update_slice.apply([contribution], self.versions[self.at], self.versions[following])
        self.at, self.is_fresh = following, True

    def complete(self) -> None:
        """All workers have made the updates of the step."""
        self.clock += 1

    def place(self, whole: Buffers, correction: float, before: int) -> None:
        """Write all workers' shares of the version after the last complete step, or `before` steps before it, to their
        places in a whole version, where they lie in memory that all see; without a word to anybody."""
        for k, versions in self.seen.items():
            version = versions[(self.clock - before) % 2]
            self._put(k, version.params, whole.params)
            for name, vector in version.state.items():
                self._put(k, vector * self._factor(name, correction), whole.state[name])

    def fill(self, whole: Buffers, correction: float) -> None:
        """Write all workers' shares to their places in a whole version on worker 0. All call it.

        correction: what a state that holds the learning rate is multiplied by.
        """
        version = self.versions[self.at]
        self._collect(version.params, whole.params)
        for name, vector in version.state.items():
            self._collect(vector * self._factor(name, correction), whole.state[name])

    # -- one turn -------------------------------------------------------------------------------------------------

    def _forward(self, x: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each layer its input (B, inputs), what it made of that, and what follows made of this, (B, outputs); only
        this worker's part where that is divided."""
        passed = []
        for i, share in enumerate(self.shares):
            weight, bias = self._parameters(share)
            z = outputs(x, weight, bias)
            if share.way == "inputs":
                z = self._summed(z)
            with torch.enable_grad():
                a = z.requires_grad_()
                for elementwise in share.layer.after:
                    a = elementwise(a, self._first(share))
            passed.append((x, z, a))
            x = self._gathered(share, a.detach()) if self._gathers(i) else a.detach()
        return passed

    def _backward(self, passed: list[tuple[Tensor, Tensor, Tensor]], da: Tensor) -> Tensor:
        """Write the gradients of the share; return this worker's part of that of the activities."""
        for i, share in reversed(list(enumerate(self.shares))):
            x, z, a = passed[i]
            last = i == len(self.shares) - 1
            if self._gathers(i):
                da = self._scattered(share, da)
            elif share.way == "inputs" and not last:
                da = self._summed(da)
            (dz,) = torch.autograd.grad(a, z, da) if share.layer.after else (da,)
            self._accumulate(share, x, dz)
            da = input_gradient(dz, self.params[f"{share.layer.name}.weight"])
        self.is_fresh = False
        return da

    def _accumulate(self, share: Share, x: Tensor, dz: Tensor) -> None:
        """Multiply straight into the flat gradient."""
        weight, bias = self.gradients[f"{share.layer.name}.weight"], self.gradients.get(f"{share.layer.name}.bias")
        weight_gradient(dz, x, weight, add=not self.is_fresh)
        if bias is not None and bias.numel():
            bias.mul_(0 if self.is_fresh else 1).add_(dz.sum(0))

    def _loss(self, logits: Tensor, turn: Passing) -> tuple[Tensor, Tensor]:
        last, loss = self.shares[-1], self.replica.loss
        divided = last.way == "outputs"
        tell = self._told if divided else _alone
        losses, gradient = loss_of_shard(loss, logits.detach(), turn.labels, self._first(last), tell)
        return (losses if divided and loss == "logistic" else losses[turn.own]), gradient

    # -- exchanges ------------------------------------------------------------------------------------------------

    def _gathers(self, index: int) -> bool:
        """Whether every worker needs all outputs of a layer that is divided by outputs."""
        following = self.shares[index + 1 : index + 2]
        return self.shares[index].way == "outputs" and any(share.way == "outputs" for share in following)

    def _gathered(self, share: Share, a: Tensor) -> Tensor:
        """All outputs (B, outputs), from each worker's (B, its outputs)."""
        received = [a.new_empty(len(a), cut.stop - cut.start) for cut in share.cuts]
        self.collectives.all_to_all([a] * len(received), received).wait()
        return torch.cat(received, 1)

    def _scattered(self, share: Share, da: Tensor) -> Tensor:
        """The sum over the workers, in the order of their ranks, of this worker's columns of (B, outputs)."""
        received = [da.new_empty(len(da), share.mine.stop - share.mine.start) for _ in share.cuts]
        self.collectives.all_to_all([da[:, cut] for cut in share.cuts], received).wait()
        return _total(received)

    def _summed(self, part: Tensor) -> Tensor:
        """The sum over the workers of their (B, outputs), on every worker."""
        self.collectives.all_reduce_sum(part.view(-1)).wait()
        return part

    def _told(self, figures: Tensor) -> Tensor:
        """Of all workers, (K, f, B)."""
        told = figures.new_empty(self.collectives.size, *figures.shape)
        self.collectives.all_to_all([figures] * len(told), list(told)).wait()
        return told

    # -- parameters -----------------------------------------------------------------------------------------------

    @property
    def params(self) -> dict[str, Tensor]:
        """This worker's part of each parameter, as the next turn uses it."""
        return self.named[self.at]

    @property
    def _rank(self) -> int:
        return self.collectives.rank

    def _memory(self, rank: int, index: int) -> Buffers:
        """One of the versions of a worker's share."""

        def vector(name: str) -> Tensor:
            return self.collectives.replicated(f"head-{rank}-{name}-{index}", self.layouts[rank].numel)

        return Buffers(vector("params"), {name: vector(name) for name in self.rule.state_names})

    def _factor(self, name: str, correction: float) -> float:
        return correction if name in self.rule.rate_names else 1.0

    def _parameters(self, share: Share) -> tuple[Tensor, Tensor | None]:
        bias = self.params.get(f"{share.layer.name}.bias")
        return self.params[f"{share.layer.name}.weight"], bias if bias is not None and bias.numel() else None

    def _first(self, share: Share) -> int:
        """The number of the first unit that this worker has of a layer's outputs."""
        return share.mine.start if share.way == "outputs" else 0

    def _cut(self, whole: Buffers) -> Buffers:
        """This worker's share of a whole version, in memory of its own."""
        layout, device = self.replica.layout, self.replica.device

        def cut(vector: Tensor) -> Tensor:
            named = layout.named(vector)
            parts = {name: share.of(name, named[name]) for share in self.shares for name in share.layer.parameters}
            return self.layout.flatten(parts).to(device)

        return Buffers(cut(whole.params), {name: cut(vector) for name, vector in whole.state.items()})

    def _collect(self, vector: Tensor, whole: Tensor) -> None:
        """Bring a vector of everyone's share to worker 0 and to its place in the whole one, some of it at a time."""
        at_root = self._rank == 0
        found = [vector.new_empty(layout.numel if at_root else 0) for layout in self.layouts]
        nothing = vector.new_empty(0)
        for start in range(0, max(layout.numel for layout in self.layouts), PIECE):
            send = [vector[start : start + PIECE] if k == 0 else nothing for k in range(len(found))]
            self.collectives.all_to_all(send, [part[start : start + PIECE] for part in found]).wait()
        for k, part in enumerate(found) if at_root else ():
            self._put(k, part, whole)

    def _put(self, rank: int, part: Tensor, whole: Tensor) -> None:
        """Write a worker's share of a vector to its places in the whole one."""
        named, parts = self.replica.layout.named(whole), self.layouts[rank].named(part)
        for share in self.everyone[rank]:
            for name in share.layer.parameters:
                share.of(name, named[name]).copy_(parts[name])


def _total(parts: Sequence[Tensor]) -> Tensor:
    """Their sum, in their order, in the memory of the first."""
    total = parts[0]
    for part in parts[1:]:
        total.add_(part)
    return total


def _alone(figures: Tensor) -> Tensor:
    return figures[None]
