"""The options of `push: delta`, for the algorithms that have it. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import ValidationInfo

from trainers.optim.outer.config import AnyOuter
from trainers.section import shorthand

STEPS = 50
"""H, where the spec does not say it."""

SENDS_CHANGES = "the shards take changes whole; take diloco, of which compress is of changes too, or push: whole"

OuterOption = Annotated[AnyOuter, shorthand("name", AnyOuter, str, default="delayed_nesterov")]
"""By what rule the shards apply what was pushed, as a spec has it."""


def of_delta(value: object, info: ValidationInfo) -> object:
    """An option that only `push: delta` has.

    Raises:
        ValueError: The algorithm pushes something else.
    """
    if value and info.data.get("push") != "delta":
        raise ValueError("only a worker that makes steps by itself has this; set push: delta, or leave it out")
    return value


def once_a_round(push: str, info: ValidationInfo, who: str) -> str:
    """A `push` beside `num_push` and `num_fetch`, which come before it.

    Raises:
        ValueError: They say another number than one.
    """
    if push == "delta" and (info.data.get("num_push") != 1 or info.data.get("num_fetch") != 1):
        raise ValueError(f"with push: delta a {who} fetches and pushes once a round; leave num_push and num_fetch")
    return push
