"""Model parallelism of all layers: columns of convolutions below divided fully connected layers.

Sources: Krizhevsky et al. 2012, section 3.5; paper 1, section 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, Minibatch, StepReport, Work
from trainers.algorithms.hybrid.activation_exchange import ActivationExchange, plan_turns
from trainers.algorithms.hybrid.column_layers import ColumnLayers
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.model_parallel import ModelParallelLayers
from trainers.algorithms.hybrid.slices import layer_slices
from trainers.collectives.agreement.step_norm import StepNorm
from trainers.data.batches import on_device
from trainers.models.objective import Supervised, Total
from trainers.models.split import split_model
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import TensorGradient
from trainers.optim.gradient_norm import NormLimit
from trainers.optim.scaling import momentum_correction
from trainers.spans import span

NO_CORRECTION = 1.0
"""Of the states that contain the learning rate: all layers have that of the last update."""


class Columns(Algorithm):
    """One worker, which has a part of every layer, and takes the examples of all workers through it.

    A step: every worker sends its images to the others; turns through the columns and the fully connected layers, in
    which activities travel where columns meet; an update of the worker's own part by the gradient over all turns. No
    gradient of a parameter travels.
    """

    def __init__(self, config: HybridConfig, columns: int, context: Context) -> None:
        assert context.collectives is not None
        self.config, self.collectives, self.replica = config, context.collectives, context.replica
        split, size = split_model(context.replica.model), context.collectives.size
        ways = config.ways(split.head)
        head = [layer_slices(split.head, ways, rank, size, config.blocks) for rank in range(size)]
        below = ColumnLayers(split.backbone, columns, self.collectives)
        self.layers = ModelParallelLayers(context, head, below)
        self.norm = StepNorm(NormLimit(context.optimizer), self.collectives, 0)
        self.schedule, self.examples = context.schedule, context.start.examples
        self.learning_rate = context.start.learning_rate  # of the last update
        self.state_names = context.optimizer.state_names
        self.shape: tuple[int, ...] = ()  # of an image, (C, H, W); known from the first step on
        self.collectives.barrier().wait()  # from here on any survivor can read the first version

    def step(self, work: Work) -> StepReport:
        lr = self.schedule(self.examples)
        images = self._images(work.minibatches)
        exchange = ActivationExchange(self.collectives, work, math.prod(self.shape), self.replica.device)
        labels = exchange.gather_labels()
        turns = plan_turns(self.config.scheme, self.config.group_size, work.sizes)
        gathering, loss = exchange.gather_activities(turns[0], images), 0.0
        with span("exchange"):
            labels_and_ids = labels.wait()
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            with span("exchange"):
                flat = exchange.turn_input(turn, gathering.wait(), labels_and_ids)
                if following is not None:
                    gathering = exchange.gather_activities(following, images)  # overlaps with this turn's passes
            with span("turn"):
                _, turn_loss = self.layers.train(replace(flat, activities=flat.activities.view(-1, *self.shape)))
                loss += float(turn_loss)
        self._update(work.total_examples, lr)
        return StepReport(Total(loss, work.examples), work.examples, lr, norms=self.norm.limit.taken())

    def gather_state(self) -> Buffers:
        """Complete on worker 0, and on all where the transport's memory is one."""
        state = self.local_state()
        if state is None:
            state = self._blank()
            self.layers.gather_state(state, NO_CORRECTION)
        return state

    def local_state(self, lag: int = 0) -> Buffers | None:
        if not self.collectives.survives_worker:
            return None
        state = self._blank()
        self.layers.copy_local_state(state, NO_CORRECTION, lag)
        return state

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _images(self, minibatches: Iterable[Minibatch]) -> dict[int, Tensor]:
        """This worker's own, by virtual rank: (n, C H W)."""
        assert isinstance(self.replica.objective, Supervised)
        found = {
            m.virtual_rank: on_device(self.replica.objective.inputs(m.batch.data), self.replica.device)
            for m in minibatches
            if m.batch is not None
        }
        if not self.shape:
            self.shape = self._agreed(next(iter(found.values())).shape[1:] if found else (0, 0, 0))
        return {rank: images.flatten(1) for rank, images in found.items()}

    def _agreed(self, shape: Iterable[int]) -> tuple[int, ...]:
        """The shape of an image, which those know who have one."""
        mine = torch.tensor([*shape], dtype=torch.float32, device=self.replica.device)
        received = [torch.empty_like(mine) for _ in range(self.collectives.size)]
        self.collectives.all_to_all([mine] * len(received), received).wait()
        return tuple(int(pixels) for pixels in torch.stack(received).amax(0))

    def _update(self, examples: int, lr: float) -> None:
        nothing = TensorGradient(torch.empty(0, device=self.replica.device))
        limited = self.norm.limit.norm is not None
        scale = self.norm.of(nothing, examples, self.layers.squares())[1] if limited else 1.0
        correction = momentum_correction(self.learning_rate, lr)
        self.layers.update(examples, lr, correction, self.examples, scale)
        if self.collectives.survives_worker:
            self.collectives.barrier().wait()  # whoever counts the step may be the one who saves it
        self.layers.complete_step()
        self.examples += examples
        self.learning_rate = lr

    def _blank(self) -> Buffers:
        """A version of the model, (P,) each, of zeros."""
        numel = self.replica.layout.numel
        return Buffers(torch.zeros(numel), {name: torch.zeros(numel) for name in self.state_names})
