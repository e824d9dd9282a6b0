"""Workers that train by themselves for a while, cut off from the shards."""

from collections import Counter


class CutOff:
    """How many steps each of them has made so.

    Reports that were held up by the cut come all at once, and not in the order in which they were made. Only one that
    knows of newer updates was made after it.
    """

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()  # by worker
        self.updates: dict[int, int] = {}  # by worker, those that it knew of when it was cut off

    def add(self, worker: int, apart: int, updates: int) -> int:
        """A worker reports how many it made, and of how many updates it knows. Once it is back, how many there were;
        else 0."""
        if apart:
            self.steps[worker] += apart
            self.updates[worker] = max(updates, self.updates.get(worker, 0))
        elif updates > self.updates.get(worker, updates):
            del self.updates[worker]
            return self.steps.pop(worker)
        return 0
