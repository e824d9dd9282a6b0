"""Shards of which one has a copy, as if each of the two were on a node of its own: a process with a folder."""

import multiprocessing
import os
import secrets
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from socket import create_server
from threading import Thread
from typing import Any

from torch import Tensor

from tests.faults.shard_process import Setup, memory_of, server_of
from trainers.errors import PeerLost, Superseded
from trainers.parameter_server.process_group import ProcessGroupShardServer, ProcessGroupStore
from trainers.parameter_server.record import JournalContents
from trainers.parameter_server.shared_memory import ShardServer
from trainers.parameter_server.standby import Replicator, StandbyShard

ANSWER_S, SOON_S = 60.0, 0.5
"""Of a copy, before its shard goes on without it; the second where the test keeps the copy from answering."""


def live(setup: Setup, index: int, pipe: Connection, begins: bool) -> None:
    """The body of a node's process: it serves from the beginning, or holds a copy until it is told to serve."""
    if begins:
        server = in_a_thread(server_of(setup, index, recovers=False))
    else:
        piece, _ = memory_of(setup, index)
        listener, token = create_server(("127.0.0.1", 0)), secrets.randbits(62)
        copy = StandbyShard(listener, token, {0: piece})
        Thread(target=copy.follow, daemon=True).start()
        pipe.send((listener.getsockname(), token))

    def released(why: str) -> bool:
        (setup.folder / "released").write_text(why)
        return True

    while True:
        with suppress(PeerLost):
            order = pipe.recv()
            if order == "serve":
                copy.end()
                server = in_a_thread(server_of(setup, index, recovers=True))
            elif order == "be impatient":
                server.ask(partial(replicator.line.set_timeout, SOON_S))  # noqa: F821  # which shipped before
            else:
                replicator = Replicator(*order, server.pieces, released, ANSWER_S)
                server.ask(replicator.begin)
            pipe.send("done")


def in_a_thread(server: ShardServer | ProcessGroupShardServer) -> ShardServer | ProcessGroupShardServer:
    """Have it serve, until another does in its place."""

    def serve() -> None:
        with suppress(Superseded):
            server.serve()

    Thread(target=serve, daemon=True).start()
    return server


class Node:
    """One process, as the test sees it."""

    def __init__(self, setup: Setup, index: int, begins: bool) -> None:
        self.setup = setup
        self.index = index
        setup.folder.mkdir(parents=True)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self.pipe, other = context.Pipe()
        self.process: BaseProcess = context.Process(target=live, args=(setup, index, other, begins), daemon=True)
        self.process.start()
        self.address: Any = None if begins else self.pipe.recv()

    def order(self, what: Any) -> None:
        """Have it do something, and wait until it has: `serve`, `be impatient` with its copy, or ship to the copy at an
        address."""
        self.pipe.send(what)
        assert self.pipe.recv() == "done"

    def send(self, number: int) -> None:
        """A signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def stopped(self) -> None:
        """None of its threads goes on when this returns; a signal alone is only on its way."""
        assert self.process.pid is not None
        self.send(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks.iterdir()} != {"T"}:
            time.sleep(0.001)

    def lost(self) -> None:
        """Its process is killed, and all that lies there is gone."""
        self.killed()
        shutil.rmtree(self.setup.folder)

    def killed(self) -> None:
        """Its process is."""
        self.send(signal.SIGKILL)
        self.process.join()

    def left(self) -> tuple[JournalContents, Tensor]:
        """What a dead one left: its record and log, and its newest parameters (n,)."""
        assert not self.process.is_alive()
        piece, journal = memory_of(self.setup, self.index)
        left = journal.read()
        assert left is not None
        return left, piece.shard.ring[left.record.newest.row].clone()


class Nodes:
    """Shard 0 has no copy; shard 1 has one, and another one when that serves or is lost."""

    def __init__(self, folder: Path, port: int) -> None:
        self.setup = Setup(folder, port)
        self.begun = 0
        self.other = Node(self._setup(), 0, begins=True)
        self.serving = Node(self._setup(), 1, begins=True)
        self.new_copy()

    def new_copy(self) -> None:
        """On a further node; it has all when this returns."""
        self.copy = Node(self._setup(), 1, begins=False)
        self.serving.order(self.copy.address)

    def lose_serving(self) -> None:
        """The copy serves in its place, and there is a new one."""
        self.serving.lost()
        self.promote()
        self.new_copy()

    def promote(self) -> None:
        """The copy serves, whatever became of who served."""
        self.serving = self.copy
        self.serving.order("serve")

    def lose_copy(self) -> None:
        """There is a new one."""
        self.copy.lost()
        self.new_copy()

    def store(self, worker: int) -> ProcessGroupStore:
        """A worker's side, in this process."""
        return ProcessGroupStore(("127.0.0.1", self.setup.port), "g0", worker, self.setup.cuts, 2)

    def stop(self) -> None:
        """End all of them."""
        for node in (self.other, self.serving, self.copy):
            node.process.kill()
            node.process.join()

    def _setup(self) -> Setup:
        self.begun += 1
        return replace(self.setup, folder=self.setup.folder / f"node-{self.begun}" / "g0")
