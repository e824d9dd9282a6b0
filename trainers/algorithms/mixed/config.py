"""The config of mixed synchronous and asynchronous SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

MOST = 4096


class MixedConfig(AlgorithmConfig):
    """Synchronous SGD within groups of workers, asynchronous SGD between the groups."""

    source: ClassVar[str] = "paper 3 (III.B, III.C), Dean et al. 2012"

    name: Literal["mixed"] = "mixed"
    """The name of the algorithm in a spec."""

    group: int | Literal["node"] = "node"
    """g: workers per group, which must divide `workers.count`; `node`: the workers of each node form a group."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group between two fetches; in between it updates its own copy with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group whose gradients are accumulated into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many steps the slowest group may be behind one that fetches; null: any number."""

    @field_validator("group", mode="before")
    @classmethod
    def _is_a_number_or_node(cls, group: Any) -> Any:
        if group != "node" and not (type(group) is int and 1 <= group <= MOST):
            raise ValueError(f"use a number of workers from 1 to {MOST}, or node")
        return group

    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        lag = info.data.get("num_push", 1) - 1
        if max_staleness is not None and max_staleness < lag:
            raise ValueError(f"a group that pushes every {lag + 1} steps waits for itself; use {lag} or more")
        return max_staleness

    @property
    def usual_optimizer(self) -> str:
        return "adagrad"  # as Dean et al. have it: it bears late gradients, momentum does not

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=False,
            uses_parameter_server=True,
            uses_collectives=True,
            num_push=self.num_push,
            group=None if self.group == "node" else self.group,
            sends_gradients=True,
            sends_whole="",
        )

    def check_workers(self, num_workers: int) -> None:
        if self.group != "node" and num_workers % self.group:
            sizes = [str(size) for size in range(1, num_workers + 1) if num_workers % size == 0]
            works = " or ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes)
            why = f"{num_workers} workers cannot form groups of {self.group}; use {works}, or node"
            raise self.refused("group", why)

    def groups(self, nodes: Sequence[str]) -> list[list[int]]:
        if self.group == "node":
            return [[rank for rank, at in enumerate(nodes) if at == node] for node in dict.fromkeys(nodes)]
        return [list(range(first, first + self.group)) for first in range(0, len(nodes), self.group)]

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.mixed.step import Mixed

        return Mixed(self, context)
