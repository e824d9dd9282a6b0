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
THRESHOLD = "or start Ray with a larger RAY_memory_usage_threshold (0.95 of the node's memory by default)"
"""What else to change where Ray's monitor ends actors."""


def how(error: BaseException) -> str:
    """What became of the process, as the log has it after the actor's name."""
    return LACKED_MEMORY if isinstance(error, ray.exceptions.OutOfMemoryError) else "died"


def predecessor_lacked_memory() -> bool:
    """Whether Ray's memory monitor has ended the process in which this actor was before Ray started it again. Blocks.

    That monitor ends first whatever can be started again, however little memory it has: of a run, the coordinator.
    """
    from ray._private.state import state  # Ray has no public call for it
    from ray.core.generated.common_pb2 import NODE_OUT_OF_MEMORY
    from ray.core.generated.gcs_pb2 import ActorTableData, WorkerTableData

    accessor = state._connect_and_get_accessor()
    me = accessor.get_actor_info(ray.get_runtime_context().current_actor._actor_id)
    before = ActorTableData.FromString(me).previous_incarnations if me else ()
    ended = accessor.get_worker_info(ray.WorkerID(before[-1].worker_id)) if before else None
    return bool(ended) and WorkerTableData.FromString(ended).exit_type == NODE_OUT_OF_MEMORY


def lacked_memory(job_id: str) -> list[str]:
    """Names of the actors of a run that are gone since Ray's memory monitor has ended them. Blocks."""
    from ray._private.state import state  # Ray's public call for it needs its dashboard
    from ray.core.generated.gcs_pb2 import ActorTableData

    dead = map(ActorTableData.FromString, state._connect_and_get_accessor().get_actor_table(None, "DEAD"))
    mine = (actor for actor in dead if actor.name.startswith(f"{job_id}/"))
    return sorted(actor.name for actor in mine if actor.death_cause.HasField("oom_context"))
