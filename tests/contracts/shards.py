"""Shards and the stores of K workers, whatever carries the vectors."""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from tests.contracts import hosts
from tests.contracts.groups import CPU, TIMEOUT_S, in_threads
from trainers.links.local import LocalWorld
from trainers.links.names import WireName
from trainers.links.rendezvous import Rendezvous
from trainers.models.layout import SHARD_ALIGN
from trainers.optim.compress.compressor import Compressor
from trainers.optim.late.rule import LateRule
from trainers.optim.optimizer import Optimizer
from trainers.optim.rule import UpdateRule, initial_state
from trainers.optim.slices import ALIGN, spans
from trainers.optim.update import SliceUpdate
from trainers.parameter_server.client import SlottedStore
from trainers.parameter_server.groups import GroupSlice, parts
from trainers.parameter_server.local import LocalServer, LocalStore, local_shard
from trainers.parameter_server.process_group import ProcessGroupShardServer, ProcessGroupStore
from trainers.parameter_server.protocol import ParameterStore, Push
from trainers.parameter_server.push_identity import PushIdentity
from trainers.parameter_server.shard import Shard, ShardConfig
from trainers.parameter_server.shared_memory import ShardServer, SharedMemoryStore, mapped_ring
from trainers.spec import SgdSpec

T = TypeVar("T")
KINDS = ("local", "shared_memory", "process_group")
NUMEL = 64 * 9


@dataclass
class Setting:
    """What the shards are to do."""

    numel: int = NUMEL
    num_shards: int = 2
    quorum: int = 0
    backup: int = 0
    num_slots: int = 2
    groups: tuple[slice, ...] = ()
    harmless_staleness: int | None = None
    late: LateRule | None = None
    compressor: Compressor | None = None
    rule: UpdateRule = field(default_factory=lambda: SgdSpec(weight_decay=0).build())

    @property
    def cuts(self) -> list[slice]:
        return spans(self.numel, self.num_shards, SHARD_ALIGN if self.numel > NUMEL else ALIGN)

    def config(self, cut: slice) -> ShardConfig:
        """Learning rate -1: with SGD a push is added to the parameters, so that they count."""
        update = SliceUpdate(Optimizer(self.rule, late=self.late), cut.stop - cut.start, CPU)
        how = self.quorum, self.backup, self.harmless_staleness, self.compressor
        return ShardConfig(update, lambda examples: -1.0, *how)


@dataclass
class Cluster:
    """Running shards and one store for each worker, all of which have joined."""

    stores: list[ParameterStore]
    shards: list[Shard] | list[hosts.RemotePiece]
    servers: list[ShardServer] | list[ProcessGroupShardServer] | list[hosts.RemoteServer]
    """Empty on the local transport."""
    world: LocalWorld | None
    connect: Callable[[int], ParameterStore]
    """The store of one more worker, by its number."""
    server: LocalServer | None = None
    """On the local transport."""
    folder: Path = Path()
    numbers: list[int] = field(default_factory=list)
    """Of the workers in `stores`."""

    def come(self, number: int) -> None:
        """One more worker joins."""
        self.stores.append(self.connect(number))
        self.numbers.append(number)

    def gone(self, index: int) -> None:
        """One of the stores is closed without leaving, and all shards have noticed."""
        store, number = self.stores.pop(index), self.numbers.pop(index)
        if self.server is not None:
            self.server.forget(number)
            return
        store.close()
        self.until(lambda: all(number not in server.channels for server in self.servers))

    def only_reaches(self, shards: Collection[int]) -> None:
        """What is pushed from now on gets to these shards alone, as if its worker had died between two of them."""
        if self.server is not None:
            push, pieces = self.server.push, self.server.groups[0]
            self.server.push = lambda group, piece, arrived: (  # type: ignore[method-assign]
                push(group, piece, arrived) if pieces.index(piece) in shards else None
            )
        for store in self.stores if self.server is None else ():
            assert isinstance(store, SlottedStore)
            hand_over = store._hand_over
            store._hand_over = lambda shard, *rest, hand_over=hand_over: (  # type: ignore[method-assign]
                hand_over(shard, *rest) if shard in shards else None
            )

    def versions(self) -> list[int]:
        """Of each shard."""
        if self.server is not None:
            return [shard.version for shard in self.shards]
        return [server.ask(lambda server=server: server.first.shard.version) for server in self.servers]

    def prepare_generation(self, version: int) -> None:
        """On each shard."""
        if self.server is not None:
            vars(self.server).pop("push", None)  # of `only_reaches`
            self.server.prepare_generation(version)
        for server in self.servers:
            server.ask(lambda server=server: server.prepare_generation(version))

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that a shard does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.001)

    def run(self, *bodies: Callable[[ParameterStore], T]) -> list[T]:
        """A body for each worker."""
        calls = [lambda body=body, store=store: body(store) for body, store in zip(bodies, self.stores, strict=False)]
        return self.world.run(calls) if self.world else in_threads(calls)

    @property
    def params(self) -> Tensor:
        """(P,) as the shards have it; only once nobody pushes any more."""
        return torch.cat([shard.params for shard in self.shards])


@dataclass
class Stores:
    """Makes clusters of one kind."""

    kind: str
    folder: Path
    rendezvous: Rendezvous | None
    generations: Iterator[int] = field(default_factory=itertools.count)

    @property
    def threaded(self) -> bool:
        """Whether workers really move at the same time, and may close from another thread."""
        return self.kind != "local"

    @property
    def port(self) -> int:
        """Of the rendezvous, where there is one."""
        return self.rendezvous.port if self.rendezvous else 0

    @contextmanager
    def cluster(
        self, num_workers: int, setting: Setting | None = None, seed: int = 0, absent: int = 0
    ) -> Iterator[Cluster]:
        """Shards that serve, ended at the end; the last `absent` workers connect by themselves."""
        setting = setting or Setting()
        if self.kind == "local":
            world = LocalWorld(seed)
            zeros = torch.zeros(setting.numel)

            def piece(span: slice) -> GroupSlice:
                return GroupSlice(span, local_shard(setting.config(span), zeros[span], num_workers))

            held = [parts(cut, setting.groups) for cut in setting.cuts]
            server = LocalServer(world, [{group: piece(span) for group, span in spans.items()} for spans in held])
            cluster = Cluster([], server.shards, [], world, lambda number: LocalStore(server, number), server)
            for number in range(num_workers - absent):
                cluster.come(number)
            yield cluster
            return
        name = f"g{next(self.generations)}"
        (self.folder / name).mkdir()
        if self.kind == "object_store":
            hosts.note_address(self.folder / name)
            remote = hosts.serve(setting, num_workers)
            pieces = [piece for server in remote for piece in server.pieces]
            yield from self._used(
                Cluster([], pieces, remote, None, self._connect(name, setting), folder=self.folder / name),
                num_workers - absent,
            )
            return
        servers = [self._server(name, setting, index, num_workers) for index in range(setting.num_shards)]
        threads = [threading.Thread(target=server.serve, daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        shards = [piece.shard for server in servers for piece in server.pieces.values()]
        cluster = Cluster([], shards, servers, None, self._connect(name, setting), folder=self.folder / name)
        yield from self._used(cluster, num_workers - absent)
        for thread in threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def _used(self, cluster: Cluster, num_workers: int) -> Iterator[Cluster]:
        """With so many workers, closed at the end."""
        try:
            for number in range(num_workers):
                cluster.come(number)
            yield cluster
        finally:
            for ending in [*cluster.stores, *cluster.servers]:
                ending.close()

    def _connect(self, name: str, setting: Setting) -> Callable[[int], ParameterStore]:
        return lambda number: connect_store(self.kind, self.folder / name, self.port, setting, worker=number)

    def _server(
        self, name: str, setting: Setting, index: int, num_workers: int
    ) -> ShardServer | ProcessGroupShardServer:
        pieces: dict[int, GroupSlice] = {}
        for group, span in parts(setting.cuts[index], setting.groups).items():
            zeros = torch.zeros(span.stop - span.start)
            states = [initial_state(setting.rule, zeros) for _ in range(2)]
            ring = [zeros.clone() for _ in range(num_workers + 2)]
            if self.kind == "shared_memory":
                ring = mapped_ring(self.folder / name, num_workers, setting.numel, span)
            pieces[group] = GroupSlice(span, Shard(setting.config(span), ring, states))
        if self.kind == "shared_memory":
            return ShardServer(self.folder / name, index, setting.numel, pieces)
        assert self.rendezvous is not None
        return ProcessGroupShardServer(("127.0.0.1", self.rendezvous.port), name, index, num_workers, pieces)


def connect_store(kind: str, folder: Path, port: int, setting: Setting, *, worker: int) -> SlottedStore:
    """A worker's side; also for processes of their own."""
    if kind == "object_store":
        return hosts.connect(folder, setting, worker)
    if kind == "shared_memory":
        return SharedMemoryStore(folder, worker, setting.cuts, setting.num_slots, setting.groups)
    return ProcessGroupStore(("127.0.0.1", port), folder.name, worker, setting.cuts, setting.num_slots, setting.groups)


def push(
    store: ParameterStore,
    number: int,
    value: float | Tensor = 1.0,
    clock: int = 0,
    examples: int = 1,
    wire: WireName = "float32",
) -> None:
    """Push minibatch `number` of epoch 0, filled with a value, and wait until it is applied."""
    begin_push(store, number, value, clock, examples, wire)()


def begin_push(
    store: ParameterStore,
    number: int,
    value: float | Tensor = 1.0,
    clock: int = 0,
    examples: int = 1,
    wire: WireName = "float32",
) -> Callable[[], None]:
    """Begin to push; the result waits."""
    store.gradient_buffer().copy_(torch.as_tensor(value).expand(store.gradient_buffer().shape))
    return store.push(Push(PushIdentity(0, number, number), clock, examples, wire=wire)).wait


def fetched(store: ParameterStore, min_clock: int = 0) -> Tensor:
    return store.fetch(min_clock).wait().params.clone()


def lossy_pushes(rank: int, num_pushes: int, quorum: int) -> Callable[[ParameterStore], None]:
    """What worker `rank` of two does while replies get lost: fetch and push, and in the end know what was applied."""

    def body(store: ParameterStore) -> None:
        for step in range(num_pushes):
            params = store.fetch(step).wait().params
            assert float(params[0]) >= (step if quorum else 2 * step)
            begin_push(store, 2 * step + rank, 1.0, step + 1)
        store.leave()
        assert sorted(p.identity.first for p in store.applied) == list(range(rank, 2 * num_pushes, 2))

    return body
