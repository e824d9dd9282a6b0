"""The options of restricted connectivity between the fully connected layers. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from trainers.section import Section

if TYPE_CHECKING:
    from trainers.models.split import FullyConnected


class ConnectSpec(Section):
    """What the units of a fully connected layer see of the one below (paper 1, sections 5.1 and 8)."""

    blocks: int = Field(ge=2, le=65536)
    """g: the units of each layer but the last are divided into g blocks of equal size, and those of every layer between
    the first and the last see the units of their own block only: the layer has 1/g of its weights. As the first layer
    sees all activities of the layers below it, and the last one the units of all blocks, nothing travels between the
    layers of up to g workers."""

    def check_head(self, head: Sequence[FullyConnected]) -> None:
        """Refuse fully connected layers that cannot be divided into so many blocks.

        Raises:
            SpecRejected: Names the field and what would work.
        """
        from trainers.errors import SpecRejected

        if len(head) < 3:
            raise SpecRejected(
                f"algorithm.connect: it restricts the layers between the first fully connected one and the last, and "
                f"this model ends in {len(head)}; take a model that ends in three or more, such as alexnet, vgg16, "
                "convnet or lenet5, or leave connect out"
            )
        for layer in head[:-1]:
            if layer.outputs % self.blocks:
                most = math.gcd(*(each.outputs for each in head[:-1]))
                fit = [str(blocks) for blocks in range(2, most + 1) if most % blocks == 0]
                remedy = f"take {' or '.join(filter(None, [', '.join(fit[:-1]), fit[-1]]))}" if fit else "leave it out"
                raise SpecRejected(
                    f"algorithm.connect.blocks: {self.blocks} blocks do not divide the {layer.outputs} units of "
                    f"{layer.name}; {remedy}"
                )
