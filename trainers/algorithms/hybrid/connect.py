"""The options of restricted connectivity between the fully connected layers. Imports no torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from trainers.section import Section

if TYPE_CHECKING:
    from torch import nn

    from trainers.models.split import FullyConnected


class ConnectSpec(Section):
    """What the units of a fully connected layer see of the one below (paper 1, sections 5.1 and 8).

    Blocks are the model's, not the workers': it is the same model on any number of these.
    """

    blocks: int | None = Field(default=None, ge=2, le=65536)
    """g: the units of each layer but the last are divided into g blocks of equal size, and those of every layer between
    the first and the last see the units of their own block only: the layer has 1/g of its weights. As the first layer
    sees all activities of the layers below it, and the last one the units of all blocks, nothing travels between the
    layers of up to g workers. null, with `rank` alone: as many as virtual workers, which then stand in the spec."""

    rank: int | None = Field(default=None, ge=1, le=65536)
    """r: of every other block k, units see r linear combinations P_k h_k of its units h_k, which are learned, so that r
    numbers travel in place of a whole block. At most the units of a block; null: of other blocks nothing is seen."""

    @model_validator(mode="after")
    def _says_what_is_seen(self) -> Self:
        if self.blocks is None and self.rank is None:
            raise ValueError("give blocks, of which units see their own, or the rank in which they see the others")
        return self

    @property
    def num_blocks(self) -> int:
        """g, as it is taken."""
        assert self.blocks is not None, "a spec has them, which knows its virtual workers"
        return self.blocks

    def replace_layers(self, model: nn.Module, as_built: bool) -> None:
        """Put projected layers in the place of those between the first and the last fully connected one, with `rank`.

        as_built: whether the model's weights are initial values that nobody has trained.

        Raises:
            SpecRejected: As `check_head`.
        """
        if self.rank is None:
            return
        from trainers.models.networks.projected import Projected
        from trainers.models.split import split_built

        head = split_built(model).head
        self.check_head(head)
        for layer in head[1:-1]:
            whole: Any = model.get_submodule(layer.name)
            model.set_submodule(layer.name, Projected(whole, self.num_blocks, self.rank, as_built))

    def check_head(self, head: Sequence[FullyConnected]) -> None:
        """Refuse fully connected layers that cannot be divided into so many blocks.

        Raises:
            SpecRejected: Names the field and what would work.
        """
        from trainers.errors import SpecRejected

        g = self.num_blocks
        if len(head) < 3:
            raise SpecRejected(
                f"algorithm.connect: it restricts the layers between the first fully connected one and the last, and "
                f"this model ends in {len(head)}; take a model that ends in three or more, such as alexnet, vgg16, "
                "convnet or lenet5, or leave connect out"
            )
        for layer in head[:-1]:
            if layer.outputs % g:
                most = math.gcd(*(each.outputs for each in head[:-1]))
                fit = [str(blocks) for blocks in range(2, most + 1) if most % blocks == 0]
                remedy = f"take {' or '.join(filter(None, [', '.join(fit[:-1]), fit[-1]]))}" if fit else "leave it out"
                raise SpecRejected(
                    f"algorithm.connect.blocks: {g} blocks do not divide the {layer.outputs} units of "
                    f"{layer.name}; {remedy}"
                )
        for below, layer in itertools.pairwise(head[:-1]):
            if (self.rank or 0) > (most := layer.inputs // g):
                raise SpecRejected(
                    f"algorithm.connect.rank: a projection of rank {self.rank} is larger than what it projects, the "
                    f"{most} units of a block of {below.name}; take {most} or less"
                )
