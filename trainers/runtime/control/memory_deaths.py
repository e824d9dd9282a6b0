"""Whether the kernel has ended an actor for want of memory, and what to do about it."""

import asyncio

from trainers.runtime.memory_kills import memory_kills
from trainers.runtime.nodes import ask_on

ENDED = "was ended by the kernel for want of memory"
REMEDY = (
    "take a smaller batch.per_worker (a larger workers.virtual keeps the batch of a step), fewer workers a node "
    "(a larger workers.cpus), or a smaller data.memory_limit_bytes"
)


async def ended_for_memory(known: tuple[str, int] | None) -> bool:
    """Whether the count has gone up on the actor's node since the actor last answered.

    known: Its node, and the count then; None where it has never answered, so that nobody knows.
    """
    if known is None:
        return False
    node, before = known
    now = await asyncio.to_thread(ask_on, node, memory_kills)
    return now is not None and before >= 0 and now > before
