"""Training examples that could not be read and were skipped: each is told once, and there may be so many."""

import math
from collections.abc import Callable, Sequence

from trainers.errors import TooManySkipped


class SkippedExamples:
    """Of one run."""

    def __init__(self, most: float, num_examples: int, tell: Callable[[int, str], None]) -> None:
        """most: As `data.max_skipped`. tell: Is told each example once, and what is wrong with it."""
        self.most = most if most >= 1 else math.ceil(most * num_examples)
        self.tell = tell
        self.found: set[int] = set()

    @property
    def examples(self) -> tuple[int, ...]:
        """All of them so far, in their order."""
        return tuple(sorted(self.found))

    def note(self, skipped: Sequence[tuple[int, str]]) -> None:
        """These were left out when the data were opened, which has looked at how many there may be."""
        for example, why in skipped:
            if example not in self.found:
                self.found.add(example)
                self.tell(example, why)

    def add(self, skipped: Sequence[tuple[int, str]]) -> None:
        """A worker has skipped these, maybe not for the first time.

        Raises:
            TooManySkipped: They are more than may be.
        """
        for example, why in skipped:
            if example in self.found:
                continue
            self.found.add(example)
            self.tell(example, why)
            if len(self.found) > self.most:
                raise TooManySkipped(
                    f"{len(self.found)} training examples could not be read, and data.max_skipped allows "
                    f"{self.most:g}; the last is: {why}"
                )
