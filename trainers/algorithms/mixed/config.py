"""The config of mixed synchronous and asynchronous SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.delta_options import SENDS_CHANGES, STEPS, OuterOption, of_delta, once_a_round
from trainers.algorithms.traits import Traits
from trainers.optim.outer.config import OuterDelayedNesterov, OuterSpec

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

MOST = 4096

KNOWN_LATER = "how many groups of a node each there are is known on the nodes only"


class MixedConfig(AlgorithmConfig):
    """Synchronous SGD within groups of workers, asynchronous SGD between the groups."""

    source: ClassVar[str] = "paper 3 (III.B, III.C), Dean et al. 2012, Liu et al. 2024"

    name: Literal["mixed"] = "mixed"
    """The name of the algorithm in a spec."""

    group: int | Literal["node"] = "node"
    """g: workers per group, which must divide `workers.count`, of one node as far as there are so many on it; `node`:
    the workers of each node form a group."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group between two fetches; in between it updates its own copy with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Steps of a group whose gradients are accumulated into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many steps the slowest group may be behind one that fetches; null: any number."""

    push: Literal["whole", "delta"] = "whole"
    """`whole`: gradients are pushed. `delta`: all workers of a group make the same steps of `optimizer`, each with the
    group's mean gradient, and what these changed is pushed (Liu et al. 2024)."""

    steps: int | None = Field(default=None, ge=1, le=10_000)
    """H, with `push: delta`: a group's steps from a fetch to its push; null: 50. `max_staleness` then counts such
    rounds."""

    outer: OuterOption | None = None
    """With `push: delta`: by what rule the shards apply what was pushed; null: `delayed_nesterov`."""

    apart_s: float = Field(default=0.0, ge=0, le=86_400)
    """With `push: delta`: seconds for which a group that is cut off from the shards goes on by itself, and is not taken
    for lost; 0: it waits for them. It pushes what it has changed once they answer again."""

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

    @field_validator("push")
    @classmethod
    def _counts_steps(cls, push: str, info: ValidationInfo) -> str:
        return once_a_round(push, info, "group")

    @field_validator("steps", "outer", "apart_s")
    @classmethod
    def _is_of_delta(cls, value: object, info: ValidationInfo) -> object:
        return of_delta(value, info)

    @field_validator("apart_s")
    @classmethod
    def _leaves_the_others_alone(cls, apart_s: float, info: ValidationInfo) -> float:
        if apart_s and info.data.get("max_staleness") is not None:
            raise ValueError("the others would wait for a group that is cut off; leave max_staleness out")
        return apart_s

    @property
    def num_steps(self) -> int:
        """H as it is taken."""
        return self.steps or STEPS

    @property
    def rule(self) -> OuterSpec | None:
        """By what the shards apply what groups changed, as it is taken; None: groups push gradients."""
        return (self.outer or OuterDelayedNesterov()) if self.push == "delta" else None

    @property
    def usual_optimizer(self) -> str:
        if self.push == "delta":
            return "adamw"  # as Liu et al. have it
        return "adagrad"  # as Dean et al. have it: it bears late gradients, momentum does not

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=False,
            uses_parameter_server=True,
            uses_collectives=True,
            num_push=self.num_push if self.rule is None else self.num_steps,
            outer=self.rule,
            common_vectors=0 if self.rule is None else 3,
            apart_s=self.apart_s,
            group=None if self.group == "node" else self.group,
            sends_gradients=True,
            sends_whole=SENDS_CHANGES if self.push == "delta" else "",
        )

    def check_workers(self, num_workers: int) -> None:
        if self.group != "node" and num_workers % self.group:
            sizes = [str(size) for size in range(1, num_workers + 1) if num_workers % size == 0]
            works = " or ".join([", ".join(sizes[:-1]), sizes[-1]] if len(sizes) > 1 else sizes)
            why = f"{num_workers} workers cannot form groups of {self.group}; use {works}, or node"
            raise self.refused("group", why)
        if self.rule is None:
            return
        if self.group == "node" and self.rule.pushes == "workers":
            how = f"outer: {{name: {(self.outer or OuterDelayedNesterov()).name}, pushes: NUMBER}}"
            raise self.refused("outer", f"{KNOWN_LATER}, and it counts their pushes; give {how}, or group a number")
        if why := self.rule.refusal(self.traits.num_pushers(num_workers)):
            raise self.refused("outer", why)

    def groups(self, nodes: Sequence[str]) -> list[list[int]]:
        here = [[rank for rank, at in enumerate(nodes) if at == node] for node in dict.fromkeys(nodes)]
        if self.group == "node":
            return here
        size, whole = self.group, [len(ranks) - len(ranks) % self.group for ranks in here]
        groups = [ranks[at : at + size] for ranks, end in zip(here, whole, strict=True) for at in range(0, end, size)]
        left = [rank for ranks, end in zip(here, whole, strict=True) for rank in ranks[end:]]
        return groups + [left[at : at + size] for at in range(0, len(left), size)]

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        if self.push == "delta":
            from trainers.algorithms.mixed.delta import GroupDeltaPushes

            return GroupDeltaPushes(context, self.num_steps, self.max_staleness, self.apart_s)
        from trainers.algorithms.mixed.step import Mixed

        return Mixed(self, context)
