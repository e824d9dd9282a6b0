"""Workers that train by themselves for a while, cut off from the shards."""

from collections import Counter


class CutOff:
    """How many steps each of them has made so."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()  # by worker

    def add(self, worker: int, apart: int) -> int:
        """A worker reports that it made so many. Once it reports none, how many there were; else 0."""
        if not apart:
            return self.steps.pop(worker, 0)
        self.steps[worker] += apart
        return 0
