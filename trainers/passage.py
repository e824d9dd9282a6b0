"""A minibatch's way through a chain of groups of layers: forward at once, backward group by group, whenever wanted."""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from trainers.data.batches import Batch
from trainers.models.chain import LayerGroup, cut_chain
from trainers.replica import Replica


class Passage:
    """One minibatch under way, with a replica of its own: its parameters and activities stay until its last group has
    gone backward, whatever the worker fetches meanwhile.

    Memory: a vector (P,) and the activities of a minibatch. Backward passes of different passages may be made on
    different threads.
    """

    def __init__(self, replica: Replica, num_groups: int) -> None:
        self.replica = replica
        self.groups: list[LayerGroup] = cut_chain(replica.model, num_groups)
        self.params = torch.zeros(replica.layout.numel)  # (P,) as they were when it went forward
        self.inputs: list[Tensor] = []  # of each group, a leaf of its own graph
        self.outputs: list[Tensor] = []  # of each group; in place of the last one's, the loss
        self.error: Tensor  # the error signal for the group that goes backward next, in the shape of its output

    def forward(self, params: Tensor, batch: Batch, scale: float) -> float:
        """Compute the loss, summed over the minibatch, with `params` (P,); `scale` is its weight in the gradient."""
        self.params.copy_(params)
        self.replica.point_to_vector(self.params)
        self.inputs, self.outputs = [], []
        logits = self.replica.forward(self._chain, batch)
        loss = self.outputs[-1] = self.replica.total_loss(logits, batch)
        self.error = torch.full_like(loss, scale)
        return float(loss.detach())

    def backward(self, group: int, names: Iterable[str], into: Tensor) -> None:
        """Write a group's gradient to its places in `into` (P,), and keep the error signal for the group below.

        names: the group's parameters, and those that no group uses and that are to get zeros.
        """
        views = self.replica.layout.named(into)
        self.replica.backward(self.outputs[group], self.error, {name: views[name] for name in names})
        if group:
            error = self.inputs[group].grad
            assert error is not None
            self.error = error
        self.inputs.pop()
        self.outputs.pop()  # and with it what the group remembered

    def _chain(self, images: Tensor) -> Tensor:
        x = images
        for number, group in enumerate(self.groups):
            x = x.detach().requires_grad_(number > 0)
            self.inputs.append(x)
            x = group(x)
            self.outputs.append(x)
        return x


def passages(replica: Replica, num_groups: int, count: int) -> list[Passage]:
    """So many passages that may be under way at once; the first with the replica itself, all with its batch-norm
    buffers."""
    found = [Passage(replica, num_groups)]
    for _ in range(count - 1):
        model, draws = copy.deepcopy((replica.model, replica.draws))
        twin = Replica(model, replica.layout, replica.device, draws)
        twin.buffers = replica.buffers
        found.append(Passage(twin, num_groups))
    return found


def other_threads() -> int:
    """How many threads this process may compute on beside the one that asks."""
    return torch.get_num_threads() - 1
