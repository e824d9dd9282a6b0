"""The config of Downpour SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.delta_options import SENDS_CHANGES, STEPS, OuterOption, of_delta, once_a_round
from trainers.algorithms.traits import Traits
from trainers.documented import Documented
from trainers.optim.late.config import Compensation, GapAware, LateSpec
from trainers.optim.outer.config import OuterDelayedNesterov, OuterSpec
from trainers.parameter_server.push_identity import LONGEST_DELAY

if TYPE_CHECKING:
    from torch import nn

    from trainers.algorithms.base import Algorithm, Context
    from trainers.models.layout import Layout


HARMLESS = {"staleness_aware": 1, "staleness_damped": 0}
"""By server rule: the largest staleness that costs nothing of the learning rate."""

READ_WHAT_WAS_FETCHED = "delay_compensated", "gap_aware"

MEETS_ITS_OWN = "it is defined for the gradient of one minibatch at the parameters that were fetched"

LEAVES_EARLY = "push: layerwise sends layers before the others' gradients are known; use push: whole, or clip.value"


class Backprop(Documented):
    """Asynchronous back-propagation: groups of layers that do not wait for each other's error signal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups: int = Field(default=2, ge=2, le=64)
    """M: groups of adjacent layers, each with about equally many. The model must be a chain of at least M groups."""

    delay: int = Field(default=1, ge=0, le=64)
    """d: a group uses the error signal that the group above it computed d minibatches ago; 0: ordinary
    back-propagation, one group after the other."""

    @property
    def longest(self) -> int:
        """Minibatches by which the first group is behind the last."""
        return (self.groups - 1) * self.delay


class DownpourConfig(AlgorithmConfig):
    """Asynchronous SGD through a sharded parameter server."""

    source: ClassVar[str] = (
        "papers 2 (5.2.1) and 3 (III.B), Dean et al. 2012, Zhang et al. 2016, Zheng et al. 2017, Huo et al. 2018, "
        "Barkai et al. 2020, Liu et al. 2024"
    )

    name: Literal["downpour"] = "downpour"
    """The name of the algorithm in a spec."""

    num_fetch: int = Field(default=1, ge=1, le=10_000)
    """Minibatches that a worker computes between two fetches; in between it updates its own copy with plain SGD."""

    num_push: int = Field(default=1, ge=1, le=10_000)
    """Minibatches whose gradients are accumulated into one push."""

    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """How many minibatches the slowest worker may be behind one that fetches; null: any number."""

    push: Literal["whole", "layerwise", "delta"] = "whole"
    """`whole`: the gradient is pushed when back-propagation is complete. `layerwise`: each group of parameters is
    pushed as soon as its gradient is complete, and the next forward pass waits for a group only when it reaches it.
    `delta`: a worker makes steps of `optimizer` by itself and pushes what they changed (Liu et al. 2024)."""

    steps: int | None = Field(default=None, ge=1, le=10_000)
    """H, with `push: delta`: a worker's steps from a fetch to its push; null: 50. `max_staleness` then counts such
    rounds."""

    dynamic: bool = False
    """With `push: delta`: whether slower workers make fewer steps, as many as they can while the fastest makes H."""

    outer: OuterOption | None = None
    """With `push: delta`: by what rule the shards apply what was pushed; null: `delayed_nesterov`."""

    bucket_bytes: int = Field(default=1024**2, ge=1, le=2**40)
    """With `push: layerwise`: adjacent parameters form groups of at least this size. With `backprop` the groups are
    those of the asynchronous back-propagation instead."""

    server_rule: Literal["plain", "staleness_aware", "staleness_damped", "delay_compensated", "gap_aware"] = "plain"
    """`staleness_aware`: the shards divide an update's learning rate by its staleness if that is above 1, as its source
    does. `staleness_damped`: by 1 + its staleness, which also damps the staleness of 1 that two workers have.
    `delay_compensated`: they take each gradient from the parameters that its worker had to those that it meets.
    `gap_aware`: they divide each gradient by how far the parameters have moved meanwhile."""

    compensation: Compensation | None = None
    """Options of `server_rule: delay_compensated`; null: as they are if left out."""

    backprop: Backprop | None = None
    """Asynchronous back-propagation, with `push: layerwise`; null: every group waits for the error signal of the same
    minibatch."""

    @field_validator("max_staleness")
    @classmethod
    def _can_progress(cls, max_staleness: int | None, info: ValidationInfo) -> int | None:
        lag = info.data.get("num_push", 1) - 1
        if max_staleness is not None and max_staleness < lag:
            raise ValueError(f"a worker that pushes every {lag + 1} minibatches waits for itself; use {lag} or more")
        return max_staleness

    @field_validator("push")
    @classmethod
    def _counts_steps(cls, push: str, info: ValidationInfo) -> str:
        return once_a_round(push, info, "worker")

    @field_validator("steps", "dynamic", "outer")
    @classmethod
    def _is_of_delta(cls, value: object, info: ValidationInfo) -> object:
        return of_delta(value, info)

    @field_validator("server_rule")
    @classmethod
    def _fits_its_gradients(cls, server_rule: str, info: ValidationInfo) -> str:
        several = info.data.get("num_push") != 1 or info.data.get("num_fetch") != 1
        if several and server_rule in READ_WHAT_WAS_FETCHED:
            raise ValueError(f"{MEETS_ITS_OWN}; use num_push: 1 and num_fetch: 1, or staleness_aware")
        if info.data.get("push") == "delta" and server_rule in READ_WHAT_WAS_FETCHED:
            raise ValueError(f"{MEETS_ITS_OWN}, and push: delta pushes what steps changed; use staleness_aware")
        return server_rule

    @field_validator("compensation")
    @classmethod
    def _is_taken(cls, compensation: Compensation | None, info: ValidationInfo) -> Compensation | None:
        if compensation is not None and info.data.get("server_rule") != "delay_compensated":
            raise ValueError("only server_rule: delay_compensated has these options; set it, or leave them out")
        return compensation

    @field_validator("backprop")
    @classmethod
    def _is_defined(cls, backprop: Backprop | None, info: ValidationInfo) -> Backprop | None:
        if backprop is None:
            return None
        if info.data.get("push") != "layerwise":
            raise ValueError("the groups' gradients belong to different minibatches; use push: layerwise")
        if info.data.get("num_push") != 1 or info.data.get("num_fetch") != 1:
            raise ValueError("it is defined for one minibatch a push and a fetch; use num_push: 1 and num_fetch: 1")
        bound = info.data.get("max_staleness")
        if bound is not None and bound < backprop.longest:
            problem = f"the first group is (groups - 1) x delay = {backprop.longest} minibatches behind"
            raise ValueError(f"{problem}, so a worker waits for itself; use max_staleness: {backprop.longest} or more")
        if backprop.delay and info.data.get("server_rule") in READ_WHAT_WAS_FETCHED:
            problem = "the shards have only what a worker fetched last, and the lower groups' gradients are older"
            raise ValueError(f"{problem}; use delay: 0, or server_rule: staleness_aware")
        if backprop.longest > LONGEST_DELAY:
            raise ValueError(f"(groups - 1) x delay is {backprop.longest}; use {LONGEST_DELAY} at most")
        return backprop

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=False,
            uses_parameter_server=True,
            uses_collectives=False,
            num_push=self.num_push if self.rule is None else self.num_steps,
            follows_paces=self.dynamic,
            outer=self.rule,
            common_vectors=0 if self.rule is None else 2,
            harmless_staleness=HARMLESS.get(self.server_rule),
            late=self.late,
            objective="any" if self.backprop is None else "supervised",
            hides_norm=LEAVES_EARLY if self.push == "layerwise" else "",
            sends_gradients=True,
            sends_whole=SENDS_CHANGES if self.push == "delta" else "",
        )

    @property
    def num_steps(self) -> int:
        """H as it is taken."""
        return self.steps or STEPS

    @property
    def rule(self) -> OuterSpec | None:
        """By what the shards apply what workers changed, as it is taken; None: workers push gradients."""
        return (self.outer or OuterDelayedNesterov()) if self.push == "delta" else None

    @property
    def usual_optimizer(self) -> str:
        if self.push == "delta":
            return "adamw"  # as Liu et al. have it
        return "adagrad"  # as Dean et al. have it: it bears late gradients, momentum does not

    def check_workers(self, num_workers: int) -> None:
        if self.rule is not None and (why := self.rule.refusal(num_workers)):
            raise self.refused("outer", why)

    @property
    def late(self) -> LateSpec | None:
        """What the shards make of the gradients themselves."""
        if self.server_rule == "delay_compensated":
            return self.compensation or Compensation()
        return GapAware() if self.server_rule == "gap_aware" else None

    def parameter_groups(self, model: nn.Module, layout: Layout) -> tuple[slice, ...]:
        if self.push != "layerwise":
            return ()
        if self.backprop is not None:
            from trainers.models.chain import cut_chain

            chain = cut_chain(model, self.backprop.groups)
            return layout.runs({name: m for m, group in enumerate(chain) for name in group.names})
        return tuple(bucket.span for bucket in layout.buckets(self.bucket_bytes))

    def resume_options(self) -> dict[str, object]:
        options: dict[str, object] = {"push": "layerwise" if self.push == "layerwise" else "whole"}
        return options if self.backprop is None else options | {"backprop.groups": self.backprop.groups}

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        if self.push == "delta":
            from trainers.algorithms.delta_pushes import DeltaPushes

            return DeltaPushes(context, self.num_steps, self.max_staleness)
        from trainers.algorithms.downpour.client import Downpour
        from trainers.algorithms.downpour.pipelined import PipelinedDownpour

        return Downpour(self, context) if self.backprop is None else PipelinedDownpour(self, self.backprop, context)
