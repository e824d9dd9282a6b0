"""How calls to several actors end: with all results, or with the first error."""

import asyncio
from typing import Any


async def settled(refs: list[Any]) -> list[Any]:
    """Results of all; the first error as soon as it is there."""
    return list(await asyncio.gather(*refs))
