"""The config of convolutions by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from torch import nn

    from trainers.algorithms.base import Algorithm, Context

EXCHANGES_FLOAT32 = "spatial exchanges rows in float32; take float32 or tf32, or algorithm: sync"


class SpatialConfig(AlgorithmConfig):
    """Each worker has some rows of every image and of what convolutions and poolings make of it, and halos travel
    between neighbours. Computes what `sync` does, to float tolerance, also with images too large for one worker."""

    source: ClassVar[str] = "paper 1 (7), Coates et al. 2013"

    name: Literal["spatial"] = "spatial"
    """The name of the algorithm in a spec."""

    until: str | None = Field(default=None, min_length=1, max_length=200)
    """The layer, as `named_modules` has it, from which on whole examples are computed, each by the worker whose it is;
    null: the first one that is no convolution, pooling, batch norm or activation. To be named where convolutions come
    after that, as after dropout."""

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            objective="supervised",
            computes_in_float32=EXCHANGES_FLOAT32,
            divides_examples=True,
            common_vectors=1,  # the gradient of one minibatch, beside the sum of those before
        )

    def check_inputs(self, model: nn.Module, inputs: tuple[int, ...], num_workers: int) -> None:
        from trainers.algorithms.spatial.preflight import check_rows

        check_rows(model, inputs, num_workers, self.until)

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.spatial.step import Spatial

        return Spatial(self, context)
