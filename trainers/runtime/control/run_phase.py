"""How far a run is."""

from enum import Enum, auto


class RunPhase(Enum):
    """How far a run is. Its log has the `State`, which says less."""

    NEW = auto()
    LOOKING = auto()
    """For the actors that survived the coordinator before this one; then they are adopted, or removed."""
    STARTING = auto()
    """Workers and shards are getting ready. A stop interrupts that."""
    OPENING = auto()
    """The shards begin to serve."""
    TRAINING = auto()
    COLLECTING = auto()
    """Nothing is left to train; the last version is being collected."""
    FINISHING = auto()
    """The last version is evaluated and kept."""
    ENDED = auto()
