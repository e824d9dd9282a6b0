"""Hybrid parallelism: the convolutional trunk is data-parallel, the fully connected layers are model-parallel.

Source: paper 1 ("One weird trick"), sections 3, 4, 4.1, 4.2 and 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.base import Algorithm, AlgorithmConfig, Context, StepReport, Work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainers.optim.update import Buffers
    from trainers.transport.protocols import Handle
    from trainers.turns import Exchange, LabelsAndIds, Returned

GROUP = 2


class HybridConfig(AlgorithmConfig):
    """Data-parallel convolutions, model-parallel fully connected layers. Computes what `sync` does, to float tolerance,
    unless `fc_batch` says otherwise."""

    source: ClassVar[str] = "paper 1 (3, 4, 4.1, 4.2, 8)"

    name: Literal["hybrid"] = "hybrid"
    """The word in a spec."""

    scheme: Literal["a", "b", "c", "bc"] = "a"
    """How the V virtual workers take their activities to the fully connected layers. `a`: all at once, one turn of the
    whole batch; `b`: V turns, in each the examples of one virtual worker; `c`: V turns, to each of which every virtual
    worker gives 1/V of its examples; `bc`: as in (b) groups take turns, as in (c) a group shares its turns (section 8).
    In `b`, `c` and `bc` the exchange of the next turn goes on during the passes of this one."""

    group: int | None = Field(default=None, ge=1, le=65536)
    """Scheme `bc`: virtual workers that share their turns; null: 2. 1 is scheme `b`, all of them is scheme `c`."""

    split: Literal["pairs", "outputs"] = "pairs"
    """`pairs`: of two consecutive layers the first is divided by its outputs and the second by its inputs, so that one
    exchange serves both, wherever that exchanges fewer activities; `outputs`: every layer by its outputs, with the
    activities exchanged in between, as in the paper."""

    fc_batch: Literal["whole", "per_turn"] = "whole"
    """`per_turn`: the fully connected layers are updated after every turn (section 4.2), with the step's learning rate
    times the turn's share of the examples, so that the turns of a step move the weights as far as one update would."""

    @field_validator("group")
    @classmethod
    def _has_groups(cls, group: int | None, info: ValidationInfo) -> int | None:
        if group is not None and info.data.get("scheme") != "bc":
            raise ValueError("only scheme bc has groups; leave it out, or set scheme to bc")
        return group

    @field_validator("fc_batch")
    @classmethod
    def _has_turns(cls, fc_batch: str, info: ValidationInfo) -> str:
        if fc_batch == "per_turn" and info.data.get("scheme") == "a":
            raise ValueError("scheme a has a single turn; use whole, or set scheme to b, c or bc")
        return fc_batch

    @property
    def uses_parameter_server(self) -> bool:
        return False

    @property
    def is_synchronous(self) -> bool:
        return True

    def check_model(self, model: nn.Module, num_workers: int) -> None:
        from trainers.errors import SpecRejected
        from trainers.models.split import choose_ways, split_model

        head = split_model(model).head
        for layer, way in zip(head, choose_ways(head, self.split == "pairs"), strict=True):
            if way == "outputs" and layer.outputs < num_workers:
                raise SpecRejected(
                    f"workers.count: {num_workers} workers cannot share the {layer.outputs} outputs of {layer.name}; "
                    f"use at most {layer.outputs}, or algorithm sync"
                )

    def build(self, context: Context) -> Algorithm:
        return Hybrid(self, context)


class Hybrid:
    """One worker: the whole trunk, and a share of each fully connected layer.

    A step: activities of the own examples, turns through the fully connected layers in which all workers compute each
    its share for the examples of all, gradients of the activities back to their owners, back through the trunk.
    """

    def __init__(self, config: HybridConfig, context: Context) -> None:
        from trainers.head import Head, shares
        from trainers.models.split import choose_ways, split_model
        from trainers.trunk import Trunk

        assert context.collectives is not None
        self.config, self.collectives, self.replica = config, context.collectives, context.replica
        split = split_model(context.replica.model)
        ways, size = choose_ways(split.head, config.split == "pairs"), context.collectives.size
        self.trunk = Trunk(context, split)
        self.head = Head(context, [shares(split.head, ways, k, size) for k in range(size)])
        self.width = split.head[0].inputs
        self.schedule, self.examples = context.schedule, context.start.examples
        self.learning_rate = self.head_rate = context.start.learning_rate  # of the update before
        self.corrections = [1.0, 1.0]  # of the head's state in the version before the newest, and in that
        self.collectives.barrier().wait()  # from here on the first version is whole, whoever dies

    def step(self, work: Work) -> StepReport:
        from trainers.optim.scaling import momentum_correction
        from trainers.optim.update import Contribution
        from trainers.turns import Exchange

        lr = self.schedule(self.examples)
        exchange = Exchange(self.collectives, work, self.width, self.replica.device)
        told = exchange.tell()
        activities = self.trunk.forward(work.minibatches)
        loss, gradients = self._fully_connected(exchange, activities, told.wait(), lr)
        reduction = self.trunk.backward(gradients)
        if self.config.fc_batch == "whole":
            self._update_head(work.whole, lr)  # while the trunk's gradients travel
        correction = momentum_correction(self.learning_rate, lr)
        self.trunk.update(Contribution(reduction.wait(), work.whole, lr, correction=correction))
        self.head.complete()
        self.examples += work.whole
        self.learning_rate = lr
        self.corrections = [self.corrections[1], momentum_correction(self.head_rate, lr)]
        return StepReport(loss, work.examples, lr)

    def whole(self) -> Buffers:
        """On worker 0; over messages the others have only the trunk's part of it."""
        trunk = self.trunk.complete()
        newest = self.newest()
        if newest is None:
            newest = self._spread(trunk)
            self.head.fill(newest, self.corrections[-1])
        return newest

    def newest(self, before: int = 0) -> Buffers | None:
        if not self.collectives.outlives:
            return None
        version = self._spread(self.trunk.version(before))
        self.head.place(version, self.corrections[-1 - before], before)
        return version

    def _spread(self, trunk: Buffers) -> Buffers:
        """The trunk's part of a whole version."""
        from trainers.optim.update import Buffers

        layout, named = self.replica.layout, self.trunk.layout.named
        state = {name: layout.spread(named(vector)) for name, vector in trunk.state.items()}
        return Buffers(layout.spread(named(trunk.params)), state)

    def finish(self) -> None:
        self.collectives.barrier().wait()

    def _fully_connected(
        self, exchange: Exchange, activities: dict[int, Tensor], told: LabelsAndIds, lr: float
    ) -> tuple[float, dict[int, Tensor]]:
        """All turns. The sum of the losses of the own examples, and the gradients of the own activities."""
        from trainers.turns import take_turns

        whole, loss = exchange.work.whole, 0.0
        turns = take_turns(self.config.scheme, self.config.group or GROUP, exchange.work.sizes)
        gathering = exchange.gather(turns[0], activities)
        returning: list[Handle[Returned]] = []
        for turn, following in zip(turns, [*turns[1:], None], strict=True):
            passing = exchange.passing(turn, gathering.wait(), told)
            if following is not None:
                gathering = exchange.gather(following, activities)  # goes on while this one passes
            gradient, losses = self.head.train(passing)
            loss += float(losses)
            if returning:
                returning[-1].wait()
            returning.append(exchange.give_back(turn, gradient))
            if self.config.fc_batch == "per_turn":
                self._update_head(len(passing.labels), lr * len(passing.labels) / whole)
        return loss, exchange.at_home(returning)

    def _update_head(self, examples: int, lr: float) -> None:
        """One update by the mean over so many examples.

        A turn of B examples of the step's kn takes the rate lr B/kn: lr B/kn times its mean is lr/kn times its sum, so
        the turns of a step add up to lr times the mean over all, which is what one update would have moved, and to one
        weight decay. It is the linear scaling rule (paper 4, section 2.1) for a batch kn/B times as small.
        """
        from trainers.optim.scaling import momentum_correction

        self.head.update(examples, lr, momentum_correction(self.head_rate, lr))
        self.head_rate = lr
