"""When to give up: a job that dies again and again without getting anywhere is not started for ever."""

from dataclasses import dataclass, field

from trainers.errors import WorkerDied

ATTEMPTS = 3


@dataclass
class Endurance:
    """Counts the deaths since the run last came further than it had ever been. All who were on a node together when one
    of them died count as one: the node may have died under them."""

    furthest: int = 0
    """Examples."""
    causes: list[str] = field(default_factory=list)
    attempts: int = 0
    together: dict[str, int] = field(default_factory=dict)
    """Node -> how many workers the run had hired when one last died there that had come after the death before."""

    def progressed(self, examples: int) -> None:
        """So many are trained."""
        if examples > self.furthest:
            self.furthest = examples
            self.causes.clear()
            self.together.clear()
            self.attempts = 0

    def failed(self, cause: str, node: str | None = None, number: int = 0, hired: int = 0) -> None:
        """A worker or a shard was lost.

        Args:
            cause: Who, and why.
            node: Where it was.
            number: Of a worker its own, and so of a shard's process: how many workers had been hired before it.
            hired: How many have been hired by now.

        Raises:
            WorkerDied: The third in a row without progress between them.
        """
        self.causes.append(cause)
        if node is not None:
            if number < self.together.get(node, 0):
                return
            self.together[node] = hired
        self.attempts += 1
        if self.attempts >= ATTEMPTS:
            told = "; ".join(dict.fromkeys(self.causes))
            raise WorkerDied(f"{len(self.causes)} processes were lost in a row before the run came any further: {told}")
