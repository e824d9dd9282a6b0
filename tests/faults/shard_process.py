"""Shards in processes of their own that are killed, by a signal or by themselves at a chosen point of an update.

What they are to do: SGD at rate -1 from zeros, so that a push of ones adds 1 to every element.
"""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch import Tensor

from trainers.optim.optimizer import Optimizer
from trainers.optim.slices import spans
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.client import RETURN_S
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.journal import ShardJournal
from trainers.parameter_server.memory import MemoryPlan, journal_of, own_ring, read_journal, two_states
from trainers.parameter_server.process_group import ProcessGroupShardServer, ProcessGroupStore
from trainers.parameter_server.protocol import ParameterStore
from trainers.parameter_server.record import JournalContents
from trainers.parameter_server.shard import Shard, ShardConfig
from trainers.parameter_server.shared_memory import ShardServer, SharedMemoryStore, mapped_ring
from trainers.spec import AnyOptimizer, SgdSpec

NUMEL = 64 * 50
POINTS = ("update", "half", "append", "written", "commit", "reply")
"""Before an update; in the middle of it; when the identities are logged; when the record is written and does not count
yet; when it counts; when the first acknowledgement is out."""


@dataclass(frozen=True)
class Setup:
    """One shard of a number of them, as its process must know it."""

    folder: Path
    port: int
    """Of the rendezvous; 0: shared memory."""
    num_shards: int = 2
    capacity: int = 4
    quorum: int = 0
    rule: AnyOptimizer = field(default_factory=lambda: SgdSpec(weight_decay=0))
    learning_rate: float = -1.0

    @property
    def cuts(self) -> list[slice]:
        return spans(NUMEL, self.num_shards)


def memory_of(setup: Setup, index: int) -> tuple[GroupSlice, ShardJournal]:
    """A shard's memory as it lies in the mapped files."""
    cut, plan = setup.cuts[index], MemoryPlan(setup.folder, index, setup.capacity, replicas=2)
    numel, rule = cut.stop - cut.start, setup.rule.build()
    ring = own_ring(plan, numel) if setup.port else mapped_ring(setup.folder, setup.capacity, NUMEL, cut)
    journal = journal_of(plan, 0, ring_is_read=True)
    assert isinstance(journal, ShardJournal)
    update = SliceUpdate(Optimizer(rule), numel, torch.device("cpu"))
    config = ShardConfig(update, lambda examples: setup.learning_rate, setup.quorum)
    return GroupSlice(cut, Shard(config, ring, two_states(plan, rule.state_names, numel), journal)), journal


def server_of(setup: Setup, index: int, recovers: bool) -> ShardServer | ProcessGroupShardServer:
    """A shard in this process, from what lies in its memory or from the beginning; it listens."""
    torch.set_num_threads(1)
    piece, _ = memory_of(setup, index)
    shard = piece.shard
    left = read_journal(shard.journal) if recovers else None
    if left is not None:
        shard.restore(left)
    else:
        zeros = torch.zeros(len(shard.params))
        shard.begin(zeros, dict.fromkeys(shard.state, zeros))
    if setup.port:
        address = ("127.0.0.1", setup.port)
        return ProcessGroupShardServer(address, setup.folder.name, index, setup.capacity, {0: piece})
    return ShardServer(setup.folder, index, NUMEL, {0: piece})


def serve(setup: Setup, index: int, recovers: bool, death: tuple[str, int] | None) -> None:
    """The body of a shard's process; `death`: a point, and the update at which it kills itself there."""
    server = server_of(setup, index, recovers)
    if death is not None:
        arm(server, *death)
    server.serve()


def arm(server: ShardServer | ProcessGroupShardServer, point: str, number: int) -> None:
    """Have the process kill itself at a point of update number `number`, counted from now."""
    shard = server.first.shard
    journal = shard.journal
    assert isinstance(journal, ShardJournal)
    updates = 0

    def die_if(reached: str) -> None:
        if reached == point and updates == number:
            os.kill(os.getpid(), signal.SIGKILL)

    update, append, commit, acknowledge = shard.config.update, journal.append, journal.commit, server._acknowledge
    apply, rule = update.apply, update.optimizer.rule

    def counted(contributions, current, following):  # type: ignore[no-untyped-def]
        nonlocal updates
        updates += 1
        die_if("update")
        if point == "half" and updates == number:
            following.params[: len(following.params) // 2] = 1e9
            for state in following.state.values():
                state.fill_(1e9)
            die_if("half")
        apply(contributions, current, following)

    def logged(identities, length):  # type: ignore[no-untyped-def]
        kept = append(identities, length)
        die_if("append")
        return kept

    def committed(record):  # type: ignore[no-untyped-def]
        if record.newest.number > record.before.number:
            if point == "written" and updates == number:
                other = 1 if journal.switch[0] == 1 else 0
                journal.slots[other] = -1  # half a record
                die_if("written")
            commit(record)
            die_if("commit")
        else:
            commit(record)

    def acknowledged(applied):  # type: ignore[no-untyped-def]
        acknowledge(applied)
        die_if("reply")

    assert rule is update.optimizer.rule
    update.apply, journal.append, journal.commit = counted, logged, committed  # type: ignore[method-assign]
    server._acknowledge = acknowledged  # type: ignore[method-assign]


class Shards:
    """Processes that are forked from one which has imported torch, brought back whenever they are dead."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__])
        self.processes: list[BaseProcess] = [self._start(index, False, None) for index in range(setup.num_shards)]
        self.deaths = 0

    def kill(self, index: int) -> None:
        """SIGKILL, and wait until it is gone."""
        process = self.processes[index]
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    def bring_back(self, index: int, death: tuple[str, int] | None = None) -> None:
        """A new process in place of a dead one, which may have its end before it."""
        self.processes[index].join(RETURN_S)  # as its client does; 20 s were too few under a load of 20
        assert self.processes[index].exitcode == -signal.SIGKILL
        self.deaths += 1
        self.processes[index] = self._start(index, True, death)

    def stop(self) -> None:
        """End all of them."""
        for process in self.processes:
            process.kill()
            process.join()

    def left(self, index: int) -> tuple[JournalContents, Tensor]:
        """What a dead shard left: its record and log, and its newest parameters (n,)."""
        assert not self.processes[index].is_alive()
        piece, journal = memory_of(self.setup, index)
        left = journal.read()
        assert left is not None
        return left, piece.shard.ring[left.record.newest.row].clone()

    def store(self, worker: int, num_slots: int = 2) -> ParameterStore:
        """A worker's side, in this process."""
        if self.setup.port:
            address, name = ("127.0.0.1", self.setup.port), self.setup.folder.name
            return ProcessGroupStore(address, name, worker, self.setup.cuts, num_slots)
        return SharedMemoryStore(self.setup.folder, worker, self.setup.cuts, num_slots)

    def _start(self, index: int, recovers: bool, death: tuple[str, int] | None) -> BaseProcess:
        process = self.context.Process(target=serve, args=(self.setup, index, recovers, death), daemon=True)
        process.start()
        return process


def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)
