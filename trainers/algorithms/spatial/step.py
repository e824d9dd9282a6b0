"""Convolutions by rows: all workers compute each minibatch together.

Source: paper 1 ("One weird trick"), section 7, after Coates et al. 2013.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.algorithms.all_reduce import AllReduce
from trainers.algorithms.base import Context, Work
from trainers.algorithms.spatial.config import SpatialConfig
from trainers.algorithms.spatial.exchange import RowExchange
from trainers.algorithms.spatial.layers import RowModel
from trainers.collectives.reduction_tree import block
from trainers.data.batches import Batch
from trainers.models.objective import Total
from trainers.models.passes.precision import computing_in
from trainers.spans import span


class Spatial(AllReduce):
    """One worker, which has some rows of every image and of every map, and all parameters.

    A minibatch, one virtual worker's after the other's: its worker sends each other one that one's rows of the images;
    all compute the convolutions on their rows, with halos from their neighbours; the maps go back to the worker whose
    minibatch it is, which computes the other layers and the loss. Gradients take the same way back. Each worker's
    gradient is then of its rows and its own examples; the sum over the workers is made, and applied, as in `sync`.
    """

    def __init__(self, config: SpatialConfig, context: Context) -> None:
        assert context.collectives is not None
        # Before the workers meet: where some are threads, no other may call a module while one is traced.
        self.model = RowModel(context.replica.model, context.inputs[1], config.until)
        for parameter in context.replica.parameters.values():
            parameter.grad = None  # what was left of a backward pass in which a worker was lost
        size = context.collectives.size
        super().__init__(context, leaves=size)
        self.owners = [k for k in range(size) for _ in range(*block(context.num_virtual, k, size))]  # by virtual rank
        (self.part,) = self.parts
        self.one = torch.zeros_like(self.part)  # (P,) the gradient of one minibatch after the first

    def _lay_down(self, params: Tensor, work: Work) -> list[Total]:
        self.replica.point_to_vector(params)
        mine = {minibatch.virtual_rank: minibatch.batch for minibatch in work.minibatches}
        totals = dict.fromkeys(mine, Total())
        into = self.part
        for rank in (rank for rank, examples in enumerate(work.sizes) if examples):
            found = self._minibatch(rank, work.sizes[rank], mine.get(rank), into)
            if rank in mine:
                totals[rank] = found
            if into is self.one:
                self.part.add_(self.one)
            into = self.one
        return list(totals.values())

    def _minibatch(self, rank: int, examples: int, batch: Batch | None, into: Tensor) -> Total:
        """Write the gradient of this worker's part of a minibatch to `into`, (P,). Returns the loss of what is its own.

        batch: None where it is another worker's.
        """
        replica = self.replica
        counts = [examples if k == self.owners[rank] else 0 for k in range(self.collectives.size)]
        exchange = RowExchange(self.collectives, counts)
        if batch is None:
            nothing = torch.empty(0, *self.context.inputs, device=replica.device)
            with span("forward"), computing_in(replica.precision, replica.device):
                outputs, total = self._maps(nothing, exchange).sum(), Total()  # the sum of nothing, to go back from
        else:
            answers = replica.forward(lambda images: self.model.rest(self._maps(images, exchange)), batch, rank)
            loss = replica.loss_of(answers, batch)
            outputs, total = loss.total, Total.of(loss)
        if outputs.requires_grad:
            replica.backward(outputs, None, replica.layout.named(into))
        else:
            into.zero_()
        return total

    def _maps(self, images: Tensor, exchange: RowExchange) -> Tensor:
        """What the layers that are computed by rows make of this worker's images (n, C, H, W), together with all other
        workers; of another worker's minibatch n is 0."""
        rows = self.model.rows(exchange.by_rows(images), exchange.through, exchange.normalised)
        return exchange.by_examples(rows, self.model.features_height)
