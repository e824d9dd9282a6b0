"""Workers that train by themselves for a while, cut off from the shards."""

from collections import Counter


class CutOff:
    """How many steps each of them has made so."""

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()  # by worker

    def add(self, worker: int, steps: int, apart: int) -> int:
        """A worker reports steps, so many of which it made apart. Once it is back, how many there were; else 0."""
        self.steps[worker] += apart
        return self.steps.pop(worker) if steps > apart else 0
