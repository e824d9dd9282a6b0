"""How evenly models lie on their servers, for each number of these: computed from their layouts."""

from functools import cache

from service.claims.claim import PLACED, ShardsOf
from trainers import fullest_of_model


@cache
def fullest_shares(shards: ShardsOf) -> dict[str, dict[int, float]]:
    """`resnet50 in turn` -> number of servers, from 1 -> what the fullest of them holds, 0 to 1."""
    return {
        f"{model} {words}": fullest_of_model(model, placement, range(1, shards.most + 1))
        for model in shards.models
        for placement, words in PLACED.items()
    }


def by_pairs(shares: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """`resnet50 in turn, even numbers` -> pair -> share; the first pair is 1 and 2 servers."""
    return {
        f"{name}, {numbers} numbers": {(count + 1) // 2: share for count, share in found.items() if count % 2 == odd}
        for name, found in shares.items()
        for numbers, odd in (("odd", 1), ("even", 0))
    }
