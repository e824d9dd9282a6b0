"""A minibatch in a chain of groups of layers: it goes forward in one pass, and backward one group at a time."""

from collections.abc import Iterable

import torch
from torch import Tensor

from trainers.data.batches import Batch
from trainers.models.chain import LayerGroup, cut_chain
from trainers.models.objective import Total
from trainers.models.replica import Replica, scale_of


class Microbatch:
    """One minibatch in flight, with a replica of its own.

    Its parameters and activities are kept until its last group has gone backward, whatever the worker fetches
    meanwhile.

    Memory: a vector (P,) and the activities of a minibatch. Backward passes of different microbatches may run on
    different threads.
    """

    def __init__(self, replica: Replica, num_groups: int) -> None:
        self.replica = replica
        self.groups: list[LayerGroup] = cut_chain(replica.model, num_groups)
        self.params = torch.zeros(replica.layout.numel, device=replica.device)  # (P,) those of the forward pass
        self.inputs: list[Tensor] = []  # of each group: a leaf of its autograd graph
        self.outputs: list[Tensor] = []  # of each group; for the last group the loss
        self.error: Tensor  # the gradient of the output of the group that goes backward next

    def forward(self, params: Tensor, batch: Batch) -> Total:
        """Compute the loss, summed over the minibatch, with `params` (P,); the gradient is that of its mean."""
        self.params.copy_(params)
        self.replica.point_to_vector(self.params)
        self.inputs, self.outputs = [], []
        outputs = self.replica.forward(self._chain, batch)
        loss = self.replica.loss_of(outputs, batch)
        self.outputs[-1] = loss.total
        self.error = torch.full_like(loss.total, scale_of(loss.weight))
        return Total.of(loss)

    def backward(self, group: int, names: Iterable[str], into: Tensor) -> None:
        """Write the gradient of a group's parameters into `into`, (P,), and keep the error signal for the group below.

        names: the group's parameters, and possibly unused ones, whose gradients are set to zero.
        """
        views = self.replica.layout.named(into)
        self.replica.backward(self.outputs[group], self.error, {name: views[name] for name in names})
        if group:
            error = self.inputs[group].grad
            assert error is not None
            self.error = error
        self.inputs.pop()
        self.outputs.pop()  # frees the group's autograd graph

    def _chain(self, images: Tensor) -> Tensor:
        x = images
        for number, group in enumerate(self.groups):
            x = x.detach().requires_grad_(number > 0)
            self.inputs.append(x)
            x = group(x)
            self.outputs.append(x)
        return x


def microbatches(replica: Replica, num_groups: int, count: int) -> list[Microbatch]:
    """Create `count` microbatches, which can be in flight at once.

    The first uses the replica itself, the others copies of it; all share the buffers of its virtual ranks.
    """
    replicas = [replica, *(replica.twin() for _ in range(count - 1))]
    return [Microbatch(each, num_groups) for each in replicas]


def other_threads() -> int:
    """The number of threads on which this process may compute, besides the calling one."""
    return torch.get_num_threads() - 1
