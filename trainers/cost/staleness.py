"""How stale gradients are when shards apply them, where workers go on by themselves."""

from trainers.algorithms.downpour.config import DownpourConfig
from trainers.algorithms.mixed.config import MixedConfig
from trainers.cost.plan import Staleness
from trainers.cost.schedules.asynchronous import rhythm_of
from trainers.spec import TrainSpec

UNEVEN = 1.13
"""Variance of how often another worker pushes in a cycle of one's own, over the coefficient of variation of a cycle:
2 E|X - Y| of two cycles, 2 x 2 / sqrt(2 pi) x sqrt(2) / 2 of normal ones, for small variations."""
QUANTILE = 1.645
"""Of the normal distribution, at 95 %."""


def staleness_of(spec: TrainSpec, workers: int, variation: float) -> Staleness | None:
    """Updates between a fetch and the push that it leads to; None where everybody waits for everybody.

    In a cycle of one of K workers each of the K - 1 others pushes once in the mean, whatever the times are. A worker
    that pushes every p minibatches and fetches every j p sends j pushes from what it fetched: the i-th is i (K - 1)
    updates of others behind and i - 1 of its own.

    variation: Coefficient of variation of a minibatch's time.
    """
    config = spec.algorithm
    if not isinstance(config, DownpourConfig | MixedConfig):
        return None
    clients = workers
    if isinstance(config, MixedConfig) and config.group != "node":
        clients = max(1, workers // min(config.group, workers))
    rhythm = rhythm_of(config)
    cycles = max(1.0, rhythm.num_fetch / rhythm.num_push)
    mean = (cycles + 1) / 2 * clients - 1
    last = cycles * clients - 1
    spread = (UNEVEN * variation * cycles * (clients - 1)) ** 0.5
    bound = rhythm.max_staleness
    first = max(0.0, clients - 1 - QUANTILE * spread)
    found = (mean, first, last + QUANTILE * spread)
    if bound is not None:  # minibatches that the slowest may be behind: so many pushes of each of the others
        most = (bound / rhythm.num_push + cycles) * clients
        found = (min(mean, most), min(first, most), min(found[2], most))
    return Staleness(mean=found[0], least=found[1], most=found[2])
