"""Rows of records: which are for training, which of their parts are taken, and which of these is learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.data.config import DataSpec
from trainers.data.draws import Int64Array, permutation
from trainers.errors import SpecRejected


@dataclass(frozen=True)
class Taken:
    """What an example is made of."""

    names: tuple[str, ...]
    """With the target, which stands last."""
    is_pair: bool
    """An input and a target; else a dict by these names."""

    def example(self, parts: dict[str, Any]) -> Any:
        """The example of these parts."""
        return tuple(parts[name] for name in self.names) if self.is_pair else {n: parts[n] for n in self.names}


def taken(data: DataSpec, names: Sequence[str], usual_target: str = "") -> Taken:
    """Which of these a spec takes: `columns`, by default all, and `target`, by default the usual one.

    Raises SpecRejected where one is not there.
    """
    for field, wanted in (("target", (data.target,) if data.target else ()), ("columns", data.columns)):
        for name in wanted:
            if name not in names:
                raise SpecRejected(f"data.{field}: there is no {name!r} in {data.root}; it has {', '.join(names)}")
    target = data.target or (usual_target if usual_target in names and usual_target not in data.columns else "")
    inputs = [name for name in data.columns or names if name != target]
    if not inputs:
        raise SpecRejected(f"data: {data.root} has nothing besides {target}; an example needs an input too")
    return Taken((*inputs, target) if target else tuple(inputs), is_pair=bool(target) and len(inputs) == 1)


def divided(data: DataSpec, num_rows: int, given: tuple[int, ...]) -> tuple[Int64Array, Int64Array, int]:
    """The training rows, those that are held out, and how many of these, the first ones, are for validation.

    num_rows: Of all sets, one after the other. given: How many of the last ones are sets that were named: none, a test
    set, or a validation set and a test set.
    """
    first = num_rows - sum(given)
    last = np.arange(first, num_rows)
    if len(given) == 2:
        return np.arange(first), last, given[0]
    if given and data.test is None and not data.carved:
        return np.arange(first), last, 0
    train, rest = split(data, first)
    return train, np.concatenate([rest, last]), len(rest) if given else 0


def split(data: DataSpec, num_rows: int) -> tuple[Int64Array, Int64Array]:
    """The training rows and those that are held out, each in their order. Raises SpecRejected where there are none."""
    order = permutation(0, 0, num_rows)
    num_test = round(num_rows * data.held_out)
    if not 0 < num_test < num_rows:
        raise SpecRejected(
            f"data.validation: {data.held_out:g} of {num_rows} rows leaves {num_test} held-out rows and "
            f"{num_rows - num_test} training rows; both are needed"
        )
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def brings_one(name: str) -> SpecRejected:
    """The error where data bring a validation set and a part of the training examples is to be another."""
    return SpecRejected(
        f"data.validation: {name} returns a validation set of its own; leave data.validation out, or have it return "
        "two sets, for training and for the test"
    )
