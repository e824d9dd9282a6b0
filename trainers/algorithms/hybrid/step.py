"""Hybrid parallelism: the backbone is data-parallel, the fully connected layers after it are model-parallel.

Source: paper 1 ("One weird trick"), sections 3, 4, 4.1, 4.2 and 8.
"""

from __future__ import annotations

from torch import Tensor

from trainers.algorithms.base import Algorithm, Context, StepReport, Work
from trainers.algorithms.hybrid.activation_exchange import ActivationExchange, LabelsAndIds, PartGradients, plan_turns
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.hybrid.data_parallel import DataParallelLayers
from trainers.algorithms.hybrid.model_parallel import ModelParallelLayers
from trainers.algorithms.hybrid.slices import layer_slices
from trainers.links.handle import Handle
from trainers.models.objective import Total
from trainers.models.split import split_model
from trainers.optim.buffers import Buffers
from trainers.optim.gradient import Gradient
from trainers.optim.scaling import momentum_correction
from trainers.optim.update import Contribution
from trainers.spans import span


class Hybrid(Algorithm):
    """One worker, which has the whole backbone and a slice of each fully connected layer.

    A step: the activities of the worker's own examples; turns through the fully connected layers, in which every worker
    computes its slices for the examples of all; the gradients of the activities back to the workers that own the
    examples; the backward pass of the backbone.
    """

    def __init__(self, config: HybridConfig, context: Context) -> None:
        assert context.collectives is not None
        self.config, self.collectives, self.replica = config, context.collectives, context.replica
        split = split_model(context.replica.model)
        ways, size = config.ways(split.head), context.collectives.size
        self.data_parallel = DataParallelLayers(context, split)
        slices = [layer_slices(split.head, ways, rank, size, config.blocks) for rank in range(size)]
        self.model_parallel = ModelParallelLayers(context, slices)
        self.width = split.head[0].inputs
        self.schedule, self.examples = context.schedule, context.start.examples
        self.learning_rate = context.start.learning_rate  # of the last update
        self.head_rate = context.start.learning_rate  # likewise, of the model-parallel layers
        # Factors for the model-parallel layers' state: one step before the newest version, and in the newest.
        self.corrections = [1.0, 1.0]
        self.collectives.barrier().wait()  # from here on any survivor can read the first version

    def step(self, work: Work) -> StepReport:
        lr = self.schedule(self.examples)
        exchange = ActivationExchange(self.collectives, work, self.width, self.replica.device)
        labels_and_ids = exchange.gather_labels()
        activities = self.data_parallel.forward(work.minibatches)
        with span("exchange"):
            labels = labels_and_ids.wait()
        loss, gradients = self._fully_connected(exchange, activities, labels, lr)
        self._update(self.data_parallel.backward(gradients), work.total_examples, lr)
        self.model_parallel.complete_step()
        self.examples += work.total_examples
        self.learning_rate = lr
        self.corrections = [self.corrections[1], momentum_correction(self.head_rate, lr)]
        norms = self.data_parallel.norm.limit.taken()
        return StepReport(Total(loss, work.examples), work.examples, lr, norms=norms)

    def gather_state(self) -> Buffers:
        """Complete on worker 0. The others have only the backbone's part where memory is not shared."""
        backbone = self.data_parallel.gather_state()
        state = self.local_state()
        if state is None:
            state = self._backbone_only(backbone)
            self.model_parallel.gather_state(state, self.corrections[-1])
        return state

    def local_state(self, lag: int = 0) -> Buffers | None:
        if not self.collectives.survives_worker:
            return None
        state = self._backbone_only(self.data_parallel.local_state(lag))
        self.model_parallel.copy_local_state(state, self.corrections[-1 - lag], lag)
        return state

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _backbone_only(self, backbone: Buffers) -> Buffers:
        """A version of the model, (P,) each, with the backbone's vectors and zeros for all other layers."""
        layout, named = self.replica.layout, self.data_parallel.layout.named
        state = {name: layout.spread(named(vector)) for name, vector in backbone.state.items()}
        return Buffers(layout.spread(named(backbone.params)), state)

    def _fully_connected(
        self, exchange: ActivationExchange, activities: dict[int, Tensor], labels_and_ids: LabelsAndIds, lr: float
    ) -> tuple[float, dict[int, Tensor]]:
        """All turns of a step.

        Returns the sum of the losses and, by virtual rank, the gradients of this worker's own activities.
        """
        total_examples, loss = exchange.work.total_examples, 0.0
        turns = plan_turns(self.config.scheme, self.config.group_size, exchange.work.sizes)
        gathering = exchange.gather_activities(turns[0], activities)
        reducing: list[Handle[PartGradients]] = []
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            with span("exchange"):
                turn_input = exchange.turn_input(turn, gathering.wait(), labels_and_ids)
                if following is not None:
                    gathering = exchange.gather_activities(following, activities)  # overlaps with this turn's passes
            with span("turn"):
                gradient, turn_loss = self.model_parallel.train(turn_input)
                loss += float(turn_loss)
            with span("exchange"):
                if reducing:
                    reducing[-1].wait()
                reducing.append(exchange.reduce_gradients(turn, gradient))
            if self.config.fc_batch == "per_turn":
                turn_examples = len(turn_input.labels)
                self._update_model_parallel(turn_examples, lr * turn_examples / total_examples)
        with span("exchange"):
            return loss, exchange.gradients_by_rank(reducing)

    def _update(self, reduction: Handle[Gradient], examples: int, lr: float) -> None:
        """Update all layers but those that were updated after every turn.

        reduction: of the backbone's gradients, on its way.
        """
        norm, at_once, scale = self.data_parallel.norm, self.config.fc_batch == "whole", 1.0
        if at_once and norm.limit.norm is None:
            self._update_model_parallel(examples, lr)  # while the backbone's gradients travel
        with span("sums"):
            gradient = reduction.wait()
        if norm.limit.norm is not None:
            gradient, scale = norm.of(gradient, examples, self.model_parallel.squares())
            self._update_model_parallel(examples, lr, scale)
        correction = momentum_correction(self.learning_rate, lr)
        self.data_parallel.update(
            Contribution(gradient, examples, lr, correction=correction, seen=self.examples, scale=scale)
        )

    def _update_model_parallel(self, examples: int, lr: float, scale: float = 1.0) -> None:
        """Update the model-parallel layers by the mean gradient of so many examples.

        A turn with B of the step's kn examples has the learning rate lr B/kn. Its update by the mean over B examples is
        lr/kn times the sum over them, so the turns of a step add up to lr times the mean over all kn examples, which is
        what one update would have moved, and to one weight decay. This is the linear scaling rule (paper 4, section
        2.1) for a batch that is kn/B times as small.
        """
        self.model_parallel.update(examples, lr, momentum_correction(self.head_rate, lr), self.examples, scale)
        self.head_rate = lr
