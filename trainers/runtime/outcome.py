"""How calls to several actors end: with all results, or with the error that caused the others."""

import asyncio
import time
from typing import Any

from trainers.errors import PeerLost, StoreClosed

GRACE_S = 10.0
"""How long a failure may take to be heard of after what it caused elsewhere."""


async def settled(refs: list[Any]) -> list[Any]:
    """Results of all; the first error as soon as it is there."""
    return list(await asyncio.gather(*refs))


async def all_or_the_cause(training: list[Any], watched: list[Any]) -> None:
    """Wait until all have trained. What a failure caused elsewhere may be heard of before the failure itself: then
    wait a little, so that the cause is raised."""
    tasks = [asyncio.ensure_future(_plain(ref)) for ref in training]
    guards = [asyncio.ensure_future(_plain(ref)) for ref in watched]
    pending: set[asyncio.Future[None]] = {*tasks, *guards}
    errors: list[BaseException] = []
    deadline: float | None = None
    while not all(task.done() for task in tasks):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        finished, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        errors += [error for future in finished if (error := future.exception()) is not None]
        if errors and (not finished or not all(map(_is_consequence, errors))):
            break
        if errors and deadline is None:
            deadline = time.monotonic() + GRACE_S
    if errors:
        raise min(errors, key=_is_consequence)


async def _plain(ref: Any) -> None:
    await ref


def _is_consequence(error: BaseException) -> bool:
    return isinstance(getattr(error, "cause", None) or error, PeerLost | StoreClosed)
