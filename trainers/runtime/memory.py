"""What the actors take of memory, and how often the kernel has ended a process for want of it: it tells that process
nothing, and counts."""

import asyncio
import ctypes
from contextlib import suppress
from pathlib import Path

from trainers.runtime.nodes import ask_on
from trainers.sizes import size_words
from trainers.spec import TrainSpec
from trainers.spec.memory import bytes_a_parameter, held_by_a_worker
from trainers.training.messages import WorkerReport

ENDED = "was ended by the kernel for want of memory"
REMEDY = (
    "take a smaller batch.per_worker (a larger workers.virtual keeps the batch of a step), "
    "model.checkpoint_activations, fewer workers a node (a larger workers.cpus), or a smaller data.memory_limit_bytes"
)


def memory_kills(root: Path = Path("/")) -> int:
    """Processes that the kernel's OOM killer has ended so far, in this process's control group where that counts them,
    and otherwise on the machine; -1 where nobody counts. root: Of the file system."""
    for path in (*_of_groups(root), root / "proc/vmstat"):
        with suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return -1


def give_back() -> None:
    """Give memory that is free back to the system; the C library of an actor keeps it (`fork_server.HEAP`)."""
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _of_groups(root: Path) -> list[Path]:
    """Files that may hold the count, the nearest first: of version 2 of control groups, and of version 1. A container
    may see its own group at the top, whatever its name is outside."""
    found, top = [], root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                found += [top / group.lstrip("/") / "memory.events", top / "memory.events"]
            elif "memory" in controllers.split(","):
                v1 = top / "memory"
                found += [v1 / group.lstrip("/") / "memory.oom_control", v1 / "memory.oom_control"]
    return found


def with_remedy(message: str) -> str:
    """Why a run has failed, with what to change where it lost processes for want of memory."""
    for_memory = any(sign in message for sign in ("for want of memory", "OutOfMemoryError"))
    return f"{message}; {REMEDY}" if for_memory else message


async def ended_for_memory(known: tuple[str, int] | None) -> bool:
    """Whether the count has gone up on the actor's node since the actor last answered.

    known: Its node, and the count then; None where it has never answered, so that nobody knows.
    """
    if known is None:
        return False
    node, before = known
    now = await asyncio.to_thread(ask_on, node, memory_kills)
    return now is not None and before >= 0 and now > before


def memory_told(spec: TrainSpec, numel: int, report: WorkerReport) -> str:
    """What a worker has taken by the end of its first step, beside what was to be expected. numel: Of the model."""
    resident, gpu = report.peak_bytes
    taken = f"{size_words(resident)} resident" + (f" and {size_words(gpu)} on its GPU" if gpu else "")
    expected = (bytes_a_parameter(spec) or 0) * numel
    least = f"at least {size_words(expected)} of it " if expected else "an unknown part of it "
    rest = "the rest activations, data and the process itself"
    return (
        f"memory: worker {report.number} had at most {taken} in its first step, {least}{held_by_a_worker(spec)}; {rest}"
    )
