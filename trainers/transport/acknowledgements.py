"""What became of a worker's pushes, which may be acknowledged group by group."""

from collections import Counter, defaultdict

from trainers.transport.protocols import Push


class Acknowledgements:
    """Counts staleness, and tells which pushes are applied in all groups of parameters."""

    def __init__(self, num_groups: int) -> None:
        self.by_group: list[Counter[int]] = [Counter() for _ in range(num_groups)]
        self.staleness: Counter[int] = Counter()  # of pushes that all groups have applied, each by its stalest group
        self.open: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)  # minibatches -> group -> staleness
        self.done: list[Push] = []

    def add(self, push: Push, stale: int) -> None:
        """All shards that hold a part of the push's group have applied it."""
        i = push.identity
        self.by_group[i.group][stale] += 1
        found = self.open[i.epoch, i.first, i.last]
        found[i.group] = stale
        if len(found) == len(self.by_group):
            del self.open[i.epoch, i.first, i.last]
            self.staleness[max(found.values())] += 1
            self.done.append(push)

    def taken(self) -> list[Push]:
        """Pushes that were applied in all groups since the last call."""
        done, self.done = self.done, []
        return done
