"""How Ray says that the process behind an actor is gone."""

import ray

GONE = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,  # Ray's own monitor has ended it, and says so instead of that it died
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
)
"""What its calls raise then; none of these is a kind of another."""

LACKED_MEMORY = "was ended by Ray for want of memory (OutOfMemoryError)"


def how(error: BaseException) -> str:
    """What became of the process, as the log has it after the actor's name."""
    return LACKED_MEMORY if isinstance(error, ray.exceptions.OutOfMemoryError) else "died"
