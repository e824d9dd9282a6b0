"""The config of hybrid parallelism."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.divided import Divided
from trainers.algorithms.hybrid.connect import ConnectSpec
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainers.algorithms.base import Algorithm, Context
    from trainers.models.split import FullyConnected, Way


GROUP = 2
"""Virtual workers of a group in scheme `bc`, if the spec gives none."""

UPDATED_IN_TURNS = (
    "fc_batch: per_turn updates the fully connected layers before the gradient of the others is known; use fc_batch: "
    "whole, or clip.value"
)


EXCHANGES_FLOAT32 = (
    "hybrid exchanges activations in float32 and multiplies them by itself; take float32 or tf32, or algorithm: sync"
)


UPDATED_MORE_OFTEN = (
    "fc_batch: per_turn updates the fully connected layers more often than the others, so their averages would not be "
    "of the same age; use fc_batch: whole"
)


class HybridConfig(AlgorithmConfig):
    """Data-parallel convolutions, model-parallel fully connected layers. Computes what `sync` does, to float tolerance,
    unless `fc_batch` or `connect` say otherwise."""

    source: ClassVar[str] = "paper 1 (3, 4, 4.1, 4.2, 5.1, 8)"

    name: Literal["hybrid"] = "hybrid"
    """The name of the algorithm in a spec."""

    scheme: Literal["a", "b", "c", "bc"] = "a"
    """How the examples of the V virtual workers pass through the fully connected layers. `a`: the complete batch at
    once, in one turn; `b`: V turns, each with the examples of one virtual worker; `c`: V turns, each with 1/V of the
    examples of every virtual worker; `bc`: groups take turns as in (b), and the members of a group share their turns as
    in (c) (section 8). In `b`, `c` and `bc` the exchange for the next turn overlaps with the computation of this
    one."""

    group: int | None = Field(default=None, ge=1, le=65536)
    """Scheme `bc`: virtual workers per group; null: 2. With 1 it is scheme `b`, with all of them scheme `c`."""

    split: Literal["pairs", "outputs"] = "pairs"
    """`pairs`: of two consecutive layers the first is divided by its outputs and the second by its inputs, so that one
    exchange serves both, wherever that exchanges fewer activities; `outputs`: every layer by its outputs, with the
    activities exchanged in between, as in the paper."""

    fc_batch: Literal["whole", "per_turn"] = "whole"
    """`whole`: the fully connected layers are updated once per step. `per_turn`: after every turn (section 4.2), with
    the step's learning rate times the fraction of the examples in the turn, so that the turns of a step move the
    weights as far as one update would."""

    connect: ConnectSpec | None = None
    """What the units of a fully connected layer see of the one below, with `blocks` and `rank`; null: all of it."""

    columns: int | None = Field(default=None, ge=2, le=1024)
    """Divides the layers below the fully connected ones as well: into so many columns of a network with grouped
    convolutions, which the workers share out, and train on the examples of all (section 8; Krizhevsky et al. 2012);
    null: every worker has all of these layers, and trains them on its own examples."""

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

    @field_validator("columns")
    @classmethod
    def _divide_all_layers(cls, columns: int | None, info: ValidationInfo) -> int | None:
        if columns is not None and info.data.get("fc_batch") == "per_turn":
            raise ValueError(
                "columns divide all layers, so none has a larger batch than the fully connected ones; use fc_batch: "
                "whole, or leave columns out"
            )
        return columns

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            objective="labels",
            divides_parameters="hybrid divides the fully connected layers among workers; use algorithm: sync",
            computes_in_float32=EXCHANGES_FLOAT32,
            sends_whole="activities are of one step, and of no use in the next; take sync, or connect to send fewer",
            hides_norm="" if self.fc_batch == "whole" else UPDATED_IN_TURNS,
            hides_average="" if self.fc_batch == "whole" else UPDATED_MORE_OFTEN,
        )

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        if self.columns is not None and num_virtual > self.columns:
            why = (
                f"{num_virtual} virtual workers, on as many workers at most, cannot share {self.columns} columns; set "
                f"workers.virtual to at most {self.columns}, and batch.per_worker to that part of the batch"
            )
            raise self.refused("columns", why)

    def completed(self, num_virtual: int) -> Self:
        if self.connect is None or self.connect.blocks is not None:
            return self
        if num_virtual == 1:
            raise self.refused(
                "connect",
                "rank alone projects the units of each virtual worker's block for the others, and there is one virtual "
                "worker; set workers.virtual to 2 or more, or give blocks",
            )
        return self.model_copy(update={"connect": self.connect.model_copy(update={"blocks": num_virtual})})

    def check_model(self, model: nn.Module, num_workers: int) -> None:
        from trainers.errors import SpecRejected
        from trainers.models.split import FullyConnected, split_model

        split = split_model(model)
        head, columns = split.head, list[FullyConnected]()
        if self.columns is not None:
            from trainers.algorithms.hybrid.column_layers import convolutions_of

            columns = [*convolutions_of(split.backbone, self.columns)]
        divided = {name for layer in (*columns, *head) for name in layer.parameters}
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        if frozen & divided:
            raise SpecRejected(
                f"optimizer.groups: hybrid divides {min(frozen & divided)} among workers and cannot freeze it; "
                "freeze layers below, or use algorithm sync"
            )
        if not columns and frozen and frozen == dict(model.named_parameters()).keys() - divided:
            raise SpecRejected(
                "optimizer.groups: with all layers below the fully connected ones frozen, hybrid has nothing to train "
                "by data parallelism; use algorithm sync"
            )
        if self.connect is not None:
            self.connect.check_head(head)
        for layer, way in zip(head, self.ways(head), strict=True):
            if way == "outputs" and layer.outputs < num_workers:
                raise SpecRejected(
                    f"workers.count: {num_workers} workers cannot share the {layer.outputs} outputs of {layer.name}; "
                    f"use at most {layer.outputs}, or algorithm sync"
                )

    def replace_layers(self, model: nn.Module, as_built: bool) -> None:
        if self.connect is not None:
            self.connect.replace_layers(model, as_built)

    def leave_out(self, model: nn.Module, versions: Iterable[dict[str, Tensor]], as_built: bool) -> None:
        if self.connect is None or self.connect.rank is not None:  # projected layers have no such weights
            return
        from trainers.algorithms.hybrid.slices import restrict
        from trainers.models.split import split_model

        head = split_model(model).head
        self.connect.check_head(head)
        for named in versions:
            restrict(head, self.blocks, named, as_built)

    def divided(self, model: nn.Module, num_workers: int) -> Divided:
        from trainers.algorithms.hybrid.held import divided

        return divided(self, model, num_workers)

    @property
    def group_size(self) -> int:
        """Scheme `bc`: virtual workers per group, as it is taken."""
        return self.group or GROUP

    @property
    def blocks(self) -> int:
        """Of the layers between the first fully connected one and the last; 1 where their units see all others."""
        return 1 if self.connect is None else self.connect.num_blocks

    @property
    def rank(self) -> int:
        """Of the projections of other blocks' units; 0 where there are none."""
        return 0 if self.connect is None else self.connect.rank or 0

    def ways(self, head: Sequence[FullyConnected]) -> tuple[Way, ...]:
        """How each of the fully connected layers is divided among the workers."""
        from trainers.models.split import choose_ways

        return choose_ways(head, self.split == "pairs", restricted=self.connect is not None)

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.hybrid.columns import Columns
        from trainers.algorithms.hybrid.step import Hybrid

        return Hybrid(self, context) if self.columns is None else Columns(self, self.columns, context)
