"""Runs a body on each of K workers, whatever carries their vectors."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from trainers.collectives.group_forming import GroupConfig
from trainers.collectives.hierarchical import join_hierarchical
from trainers.collectives.local import local_collectives
from trainers.collectives.process_group import ProcessGroupCollectives
from trainers.collectives.protocol import Collectives
from trainers.collectives.shared_memory import SharedMemoryCollectives
from trainers.links.local import LocalWorld
from trainers.links.rendezvous import Rendezvous, host_rendezvous
from trainers.links.waiting import WaitFlag, wait_flag

T = TypeVar("T")

KINDS = ("local", "shared_memory", "process_group", "hierarchical")
NODES = (0, *[1] * 15)
"""Where the workers of a hierarchical group are, unless a test says otherwise."""
CPU = torch.device("cpu")
TIMEOUT_S = 120.0  # no test waits for it unless it fails


@dataclass
class Groups:
    """Makes groups of one kind; each `run` is a generation of its own."""

    kind: str
    folder: Path
    rendezvous: Rendezvous | None
    generations: Iterator[int] = field(default_factory=itertools.count)
    nodes: tuple[int, ...] = ()
    """The number of the node on which each worker is to be."""

    @property
    def threaded(self) -> bool:
        """Whether workers really move at the same time."""
        return self.kind != "local"

    def run(self, size: int, body: Callable[[Collectives], T]) -> list[T]:
        """The results of `body` on each worker. Raises the first error, after which all groups are closed."""
        if self.kind == "local":
            members = local_collectives(LocalWorld(), size)
            world = members[0].group.world
            return world.run([lambda member=member: body(member) for member in members])
        generation = next(self.generations)

        def worker(rank: int) -> T:
            with self.joined(generation, rank, size) as collectives:
                return body(collectives)

        return in_threads([lambda rank=rank: worker(rank) for rank in range(size)])

    @contextmanager
    def joined(self, generation: int, rank: int, size: int) -> Iterator[Collectives]:
        """Member `rank` of a generation, closed at the end."""
        port = self.rendezvous.port if self.rendezvous else 0
        collectives = join(self.kind, self.folder, port, generation, rank=rank, size=size, nodes=self.nodes)
        try:
            yield collectives
        finally:
            collectives.close()


def join(
    kind: str, folder: Path, port: int, generation: int, *, rank: int, size: int, nodes: tuple[int, ...] = ()
) -> Collectives:
    """Member `rank` of a generation; also for processes of their own."""
    nodes = nodes or NODES[:size] if kind == "hierarchical" else nodes
    place = folder / f"g{generation}" / f"node-{nodes[rank] if nodes else 0}"
    place.mkdir(exist_ok=True, parents=True)
    if kind == "shared_memory":
        return SharedMemoryCollectives(place, rank, size)
    address, prefix = ("127.0.0.1", port), f"{folder}/g{generation}"
    config = GroupConfig(address, prefix, rank, size, CPU, TIMEOUT_S, nodes=nodes)
    return join_hierarchical(config, place) if kind == "hierarchical" else ProcessGroupCollectives(config)


class Latecomer:
    """Comes so long after another has begun to wait for it, however late that one is itself."""

    def __init__(self) -> None:
        self.flags = list[WaitFlag]()

    def expect(self) -> None:
        """Called by the thread that waits, just before it does."""
        self.flags.append(wait_flag())

    def come(self, after_s: float) -> None:
        """Return when it is time to come."""
        while not any(flag.is_raised for flag in self.flags):
            time.sleep(0.001)
        time.sleep(after_s)


def in_threads(bodies: list[Callable[[], T]]) -> list[T]:
    """Their results; raises the first error that one of them came to."""
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            results[index] = bodies[index]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * TIMEOUT_S)
    if errors:
        raise errors[0]
    assert len(results) == len(bodies), "a worker did not come to its end"
    return [results[i] for i in range(len(bodies))]


@contextmanager
def rendezvous_for(kind: str) -> Iterator[Rendezvous | None]:
    """What a kind needs to meet."""
    if kind not in ("process_group", "hierarchical"):
        yield None
        return
    rendezvous = host_rendezvous("127.0.0.1")
    try:
        yield rendezvous
    finally:
        rendezvous.close()
