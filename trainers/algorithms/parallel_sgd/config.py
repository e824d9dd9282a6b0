"""The config of ParallelSGD."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig, names_of_ranks
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context
    from trainers.data.partitioned.dataset import Partitioning

ROUNDING = 1e-9
"""What is added to a power before it is rounded down, so that 2.0 is not taken for 1."""

SAMPLES = 64
"""Labels that each worker sends in a full shuffle, if the spec gives no number."""

START = "round-start"
"""Under which name a checkpoint within a round has the parameters with which that began, (P,)."""


class ParallelSgdConfig(AlgorithmConfig):
    """Each worker runs SGD by itself on the examples that it holds. The parameters are averaged from time to time, and
    the examples are shuffled between workers before each round. A round is an epoch: every worker trains its examples
    once."""

    source: ClassVar[str] = "paper 2 (5.1.1, algorithms 1 and 2), Zinkevich et al. 2010, Stich 2019, Lin et al. 2020"

    name: Literal["parallel_sgd"] = "parallel_sgd"
    """The name of the algorithm in a spec."""

    average_every: Literal["round"] | Annotated[int, Field(ge=1, le=1_000_000)] = "round"
    """Steps H between two averages of parameters and optimiser state, which are also made at the end of each round;
    `round`: only there."""

    local_after: int = Field(default=0, ge=0, le=1_000_000)
    """Epochs t' of post-local SGD: until they are over all parameters are averaged after every step, as large-batch SGD
    has it, or as `growth` says, and from then on every `average_every`."""

    growth: Literal["none", "linear", "exponential"] = "none"
    """How the steps between two averages grow in these epochs. `none`: they do not, and are 1; `linear`: by the same
    number in each epoch, from 1 to `average_every`; `exponential`: by the same factor. Rounded down."""

    group: int | None = Field(default=None, ge=2, le=100_000)
    """Virtual workers of a group, which averages more often than all together do, as those of a node might. They are
    neighbours, and so are the virtual workers of a node."""

    within: int | None = Field(default=None, ge=1, le=1_000_000)
    """Steps between two averages within a group; fewer than `average_every`."""

    start: Literal["dealt", "sorted"] = "dealt"
    """Which examples each worker holds before the first shuffle. `dealt`: random ones; `sorted`: the examples are
    sorted by label and cut into parts, as if they had been collected class by class."""

    shuffle: Literal["none", "exchange", "full"] = "full"
    """The shuffle before each round, including the first. `full`: ShuffleSGD, after which the labels of every worker
    are distributed as those of the training set; `exchange`: pairs of workers exchange half of their examples, with
    other pairs in each round; `none`: no shuffle."""

    samples: int | None = Field(default=None, ge=1, le=1_000_000)
    """Full shuffle: number d of labels that each worker sends to the others to determine the bins; null: 64."""

    @field_validator("average_every", mode="before")
    @classmethod
    def _is_steps_or_round(cls, value: Any) -> Any:
        if value != "round" and (type(value) is not int or not 1 <= value <= 1_000_000):
            raise ValueError("give a number of steps from 1 to 1000000, or round")
        return value

    @field_validator("local_after")
    @classmethod
    def _changes_something(cls, local_after: int, info: ValidationInfo) -> int:
        if local_after and info.data.get("average_every") == 1:
            raise ValueError("with average_every: 1 no step is local before it nor after; raise that, or leave it out")
        return local_after

    @field_validator("growth")
    @classmethod
    def _leads_somewhere(cls, growth: str, info: ValidationInfo) -> str:
        if growth != "none" and info.data.get("local_after") == 0:
            raise ValueError("say in how many epochs the steps grow (local_after), or leave it out")
        if growth != "none" and info.data.get("average_every") == "round":
            raise ValueError("say to how many steps they grow: give average_every a number, or leave growth out")
        return growth

    @field_validator("within")
    @classmethod
    def _is_of_a_group(cls, within: int | None, info: ValidationInfo) -> int | None:
        group, every = info.data.get("group"), info.data.get("average_every")
        if (within is None) != (group is None):
            raise ValueError("within and group go together: give both, or neither")
        if within is not None and isinstance(every, int) and within >= every:
            raise ValueError(
                f"all average every {every} steps already; give fewer steps than that, or raise average_every"
            )
        return within

    @field_validator("samples")
    @classmethod
    def _are_taken(cls, samples: int | None, info: ValidationInfo) -> int | None:
        if samples is not None and info.data.get("shuffle") != "full":
            raise ValueError("only a full shuffle takes samples; leave it out, or set shuffle to full")
        return samples

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=True,
            uses_parameter_server=False,
            uses_collectives=True,
            steps_alone=self.average_every != 1 and not self.local_after,
            averaged_each_step=self.group if self.group is not None and self.within == 1 else 1,
            holds_examples=True,
            own_replicas=True,
            sends_whole="",
        )

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        if self.group is None or (num_virtual % self.group == 0 and self.group < num_virtual):
            return
        sizes = [str(size) for size in range(2, num_virtual) if num_virtual % size == 0]
        works = f"use {', '.join(sizes)}, or" if sizes else "use another workers.virtual, or"
        raise self.refused(
            "group", f"{num_virtual} virtual workers do not form several groups of {self.group}; {works} leave it out"
        )

    def every(self, epoch: int) -> int | None:
        """Steps between two averages in an epoch; None: only its end makes one."""
        whole = None if self.average_every == "round" else self.average_every
        if epoch >= self.local_after:
            return whole
        if self.growth == "none" or whole is None:
            return 1
        if self.growth == "linear":
            return 1 + (whole - 1) * epoch // self.local_after
        return max(1, math.floor(math.pow(whole, epoch / self.local_after) + ROUNDING))

    @property
    def averages(self) -> tuple[str, str]:
        """When averages are made, and who says so, for `explain`."""
        found, source = "steps between two averages; an epoch's end ends them", "Stich 2019"
        if self.local_after:
            first = "1" if self.growth == "none" else f"from 1, {self.growth}ly more by epoch,"
            found = f"{first} until epoch {self.local_after}, then so many {found}"
            source = "Lin et al. 2020, post-local SGD"
        if self.group is not None:
            steps = f"{self.within} steps" if self.within != 1 else "step"
            found += f"; within each group of {self.group} virtual workers there is one after every {steps}"
            source = (
                f"{source}, hierarchical local SGD" if self.local_after else "Lin et al. 2020, hierarchical local SGD"
            )
        return found, source

    def partitioning(self, seed: int, partition_sizes: tuple[int, ...]) -> Partitioning:
        from trainers.data.partitioned.dataset import Partitioning
        from trainers.data.partitioned.shuffle import Shuffle

        return Partitioning(self.start, Shuffle(self.shuffle, self.samples or SAMPLES, seed, partition_sizes))

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        return (START, *names_of_ranks(("x", *rule), num_virtual))

    def resume_options(self) -> dict[str, object]:
        return super().resume_options() | {"start": self.start, "shuffle": self.shuffle, "samples": self.samples}

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.parallel_sgd.step import ParallelSgd

        return ParallelSgd(self, context)
