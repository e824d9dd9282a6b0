"""Whether a lost worker is replaced, or the run is given up because it dies again and again without progress."""

from dataclasses import dataclass, field

ATTEMPTS = 3
"""Deaths in a row, without progress between them, after which a run is given up."""


@dataclass(frozen=True)
class GiveUp:
    """The run is not to go on."""

    message: str


@dataclass
class FailurePolicy:
    """Counts the deaths since the run last came further than it had ever been.

    All that were on a node together when one of them died count as one death: the node may have died under them.
    """

    furthest: int = 0
    """Examples."""
    causes: list[str] = field(default_factory=list)
    attempts: int = 0
    on_node: dict[str, int] = field(default_factory=dict)
    """By node: how many workers the run had started when its last counted death there happened. Processes that are
    older than that were there together with the one that died."""
    shards: set[str] = field(default_factory=set)
    """That were lost since: what is lost again is not what was there together with the first."""

    def progressed(self, examples: int) -> None:
        """So many examples are trained."""
        if examples > self.furthest:
            self.furthest = examples
            self.causes.clear()
            self.on_node.clear()
            self.shards.clear()
            self.attempts = 0

    def learned(self, cause: str, better: str) -> None:
        """More is known of why one was lost."""
        self.causes = [better if one == cause else one for one in self.causes]

    def failed(
        self, cause: str, node: str | None = None, age: int = 0, num_started: int = 0, shard: str = ""
    ) -> GiveUp | None:
        """A worker or a shard was lost. None: replace it.

        Args:
            cause: Which one, and why.
            node: Where it was.
            age: How many workers had been started before this process was; of a worker, its number.
            num_started: How many have been started by now.
            shard: Its name, if it was one: the process that takes its place has the same.
        """
        is_again = False
        if shard:
            age -= 1  # it is as old as the worker that was started last before it
            is_again = shard in self.shards
            self.shards.add(shard)
        self.causes.append(cause)
        if node is not None:
            if age < self.on_node.get(node, 0) and not is_again:
                return None
            self.on_node[node] = num_started
        self.attempts += 1
        if self.attempts < ATTEMPTS:
            return None
        causes = "; ".join(dict.fromkeys(self.causes))
        return GiveUp(f"{len(self.causes)} processes were lost in a row before the run came any further: {causes}")
