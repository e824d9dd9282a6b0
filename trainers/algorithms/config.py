"""The base class of the algorithms' configs. Imports no torch: specs are read in processes that have none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import ConfigDict, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from trainers.algorithms.divided import Divided
from trainers.algorithms.traits import Traits
from trainers.documented import Documented

if TYPE_CHECKING:
    from torch import Tensor, nn

    from trainers.algorithms.base import Algorithm, Context
    from trainers.data.partitioned.dataset import Partitioning
    from trainers.models.layout import Layout


class AlgorithmConfig(Documented, ABC):
    """Base class of the configs in the folders beside this file. The field `name` tells them apart in a spec."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: str
    """The name of the algorithm in a spec."""

    source: ClassVar[str] = ""
    """Paper and section."""

    @property
    def usual_optimizer(self) -> str:
        """Of a spec that names none."""
        return "momentum"

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """What the rest of the system must know about the algorithm."""

    @abstractmethod
    def build(self, context: Context) -> Algorithm:
        """The algorithm on one worker."""

    # -- checks: called when the spec is read, and with the model before the run starts -----------------------------

    def check_workers(self, num_workers: int) -> None:
        """Refuse a number of workers that is incompatible with one of the fields.

        Raises:
            ValidationError: Names the field and what would work (see `refused`).
        """

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        """Refuse a number of virtual workers that is incompatible with one of the fields.

        Raises:
            ValidationError: Names the field and what would work (see `refused`).
        """

    def completed(self, num_virtual: int) -> Self:
        """The same with what is left to the number of virtual workers as a number of its own.

        Raises:
            ValidationError: Names the field and what would work (see `refused`).
        """
        return self

    def check_model(self, model: nn.Module, num_workers: int) -> None:
        """Refuse a model that the algorithm cannot train on this number of workers.

        Raises:
            SpecRejected: Names the field and what would work.
        """

    def check_inputs(self, model: nn.Module, inputs: tuple[int, ...], num_workers: int) -> None:
        """Refuse examples that cannot be shared out among workers.

        Args:
            model: as `check_model` takes it.
            inputs: shape of one example's inputs.
            num_workers: the most that the run may come to have.

        Raises:
            SpecRejected: Names the field and what would work.
        """

    def replace_layers(self, model: nn.Module, as_built: bool) -> None:
        """Put the layers that the algorithm trains into a model that was just built, in the place of others.

        as_built: whether its weights are initial values that nobody has trained.

        Raises:
            SpecRejected: As `check_model`.
        """

    def leave_out(self, model: nn.Module, versions: Iterable[dict[str, Tensor]], as_built: bool) -> None:
        """Zero the weights that the algorithm takes out of a model, and fit the initial values of the others to it.

        Args:
            model: as `check_model` takes it.
            versions: values of its parameters by name, or of their optimizer's state; changed in place.
            as_built: whether they are initial values that nobody has trained.

        Raises:
            SpecRejected: As `check_model`.
        """

    def refused(self, field: str, why: str) -> ValidationError:
        """The validation error of one of this config's fields, for checks that need the rest of the spec."""
        kind = PydanticCustomError("value_error", "{why}", {"why": why})
        detail = InitErrorDetails(type=kind, loc=(field,), input=getattr(self, field))
        return ValidationError.from_exception_data(self.name, [detail])

    # -- how workers, parameters and examples are divided -----------------------------------------------------------

    def groups(self, nodes: Sequence[str]) -> list[list[int]]:
        """The ranks of the workers that advance in lockstep, group by group.

        nodes: the node of each worker, by rank.
        """
        ranks = list(range(len(nodes)))
        return [ranks] if self.traits.is_synchronous else [[rank] for rank in ranks]

    def parameter_groups(self, model: nn.Module, layout: Layout) -> tuple[slice, ...]:
        """The spans of the flat parameter vector that are pushed and fetched separately, the same in every process.

        Empty if the vector is pushed and fetched in one piece.

        Raises:
            ValueError: The model does not allow what a field asks for; names the field and what would work.
        """
        return ()

    def partitioning(self, seed: int, partition_sizes: tuple[int, ...]) -> Partitioning:
        """How examples are first divided among the virtual workers and how they move between epochs.

        Only for algorithms whose traits say `holds_examples`.

        Args:
            seed: of the run.
            partition_sizes: how many examples each virtual worker holds.
        """
        raise NotImplementedError(f"{self.name} has all examples at hand")

    def divided(self, model: nn.Module, num_workers: int) -> Divided | None:
        """How much of a model that was just built workers share out; None where each has all of it.

        Raises:
            SpecRejected: As `check_model`.
        """
        return None

    # -- what a checkpoint holds ------------------------------------------------------------------------------------

    def private_names(self, rule: tuple[str, ...], num_virtual: int) -> tuple[str, ...]:
        """Names of the (P,) vectors that this algorithm stores in a checkpoint beside the parameters and the optimizer
        state.

        rule: the names under which the update rule keeps its state.
        """
        return ()

    def resume_options(self) -> dict[str, object]:
        """The options that must not change when a run resumes within an epoch, by name.

        They decide which examples a step trains and into which parts a push is divided, which is part of the push
        identities that the shards remember.
        """
        return {"push": "whole"}


def names_of_ranks(names: Sequence[str], num_virtual: int) -> tuple[str, ...]:
    """Under which names a checkpoint has vectors that each virtual worker has of its own, in the order of the ranks."""
    return tuple(f"{name}-{rank}" for rank in range(num_virtual) for name in names)
