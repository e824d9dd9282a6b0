"""What every actor of a run but the coordinator has: a name, a folder on its node, a heartbeat, and an eye on the
coordinator."""

import logging
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from trainers.data.reading import OPENING
from trainers.elastic.heartbeat import Heartbeat
from trainers.runtime.actors.coordinator_watch import CoordinatorWatch
from trainers.runtime.actors.printed import Printing
from trainers.runtime.actors.usage import UsageMeter
from trainers.runtime.memory import memory_kills
from trainers.runtime.messages import ActorLocation
from trainers.runtime.node_folder import cleanup, leave
from trainers.runtime.processes import ProcessId, this_process

if TYPE_CHECKING:
    from trainers.training.setup import Setup


class BaseActor:
    """Base of the actors. Its methods answer while the actor's long call (`train`, `serve`) runs."""

    def __init__(self, name: str, job_id: str, coordinator_name: str | None = None) -> None:
        """coordinator_name: Of the coordinator without which this actor ends itself, sooner or later; none for the
        actors of a trial, which Ray ends together with the process that started them."""
        self.name = name
        self.job_id = job_id
        self.activity, self.active_since_s = "", time.monotonic()
        self.setup: Setup | None = None  # of the actors that have data and a model
        self.watch = None if coordinator_name is None else CoordinatorWatch(coordinator_name)
        own_name = name.partition("/")[2] or name
        self.printing, self.usage = Printing(own_name), UsageMeter(own_name)
        self._own_process()

    def process(self) -> ProcessId:
        """The process that it runs in."""
        import ray

        return this_process(ray.get_runtime_context().get_node_id())

    def beat(self, coordinator: ProcessId, turn_s: float = 0.0) -> Heartbeat:
        """Take note that the coordinator is alive, and tell what this actor does.

        turn_s: How much longer than BEAT_S it is to the next time, since other actors have their turns.
        """
        if self.watch is not None:
            self.watch.hear(coordinator, turn_s)
        device = None if self.setup is None else self.setup.replica.device
        return replace(self.heartbeat(), printed=self.printing.take(), reading=self.usage.read_if_due(device))

    def heartbeat(self) -> Heartbeat:
        """What this actor does."""
        busy_s = time.monotonic() - self.active_since_s
        cpu_s, kills = time.process_time(), memory_kills()
        beat = Heartbeat(cpu_s=cpu_s, activity=self.activity, activity_s=busy_s, memory_kills=kills)
        reading = OPENING.longest() if self.setup is None else self.setup.dataset.reading()
        return beat if reading is None else replace(beat, example=reading.example, reading_s=reading.seconds)

    def note(self, activity: str) -> None:
        """Say what it does from now on, while it gets ready. After a comma stands how far it is."""
        if activity.partition(",")[0] != self.activity.partition(",")[0]:
            self.active_since_s = time.monotonic()
        self.activity = activity

    def place(self) -> ActorLocation:
        """Where this actor runs."""
        import ray

        context = ray.get_runtime_context()
        node_id, actor_id = context.get_node_id(), context.get_actor_id() or ""
        return ActorLocation(self.name, node_id, ray.util.get_node_ip_address(), os.getpid(), actor_id)

    def cleanup(self) -> None:
        """Remove the run's folder on this node."""
        cleanup(self.job_id)

    def _own_process(self) -> None:
        """Take over the process, which is this actor's alone: its log lines bear the name, and it ends when there is no
        coordinator any more."""
        self.printing.capture()
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._sign)
        if self.watch is not None:
            threading.Thread(target=self._end_with, args=(self.watch,), name="coordinator watch", daemon=True).start()

    def _sign(self, record: logging.LogRecord) -> bool:
        """Add this actor's name and job to a record of Python's logging."""
        record.job, record.worker = self.job_id, self.name
        return True

    def _end_with(self, watch: CoordinatorWatch) -> None:
        watch.run()
        leave(self.job_id)
        os._exit(1)


def use_code(code: bool) -> None:
    """Move a user's working directory from the front of the import path, where Ray puts it, to the end."""
    import sys

    if code:
        here = os.getcwd()
        sys.path[:] = [entry for entry in sys.path if entry not in (here, "")] + [here]


def limit_threads(count: int) -> None:
    """Fix the number of torch's threads before torch is imported. Its libraries choose their kernels, and with them the
    bits of a result, by the number that they find then, in each thread that is told no other (`use_threads`)."""
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(count)


def fix_workspace() -> None:
    """Have cuBLAS give the same bits each time: with a workspace of a fixed size, here eight buffers of 4 MiB. It must
    be said before the first product on a GPU; a user's own value stays."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
