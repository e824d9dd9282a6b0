"""Shards and the stores of K workers, whatever carries the vectors."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from tests.contracts.groups import CPU, TIMEOUT_S, in_threads
from trainers.optim.rules import UpdateRule, build_rule
from trainers.optim.update import SliceUpdate, initial_state, spans
from trainers.spec import SgdSpec
from trainers.store.identity import PushIdentity
from trainers.store.shard import Shard, ShardConfig
from trainers.transport.local import LocalServer, LocalStore, LocalWorld, local_shard
from trainers.transport.process_group_store import ProcessGroupShardServer, ProcessGroupStore
from trainers.transport.protocols import ParameterStore, Push
from trainers.transport.rendezvous import Rendezvous
from trainers.transport.shared_store import ShardServer, SharedMemoryStore, mapped_ring

T = TypeVar("T")
NUMEL = 64 * 9


@dataclass
class Setting:
    """What the shards are to do."""

    numel: int = NUMEL
    num_shards: int = 2
    quorum: int = 0
    num_slots: int = 2
    rule: UpdateRule = field(default_factory=lambda: build_rule(SgdSpec(weight_decay=0)))

    @property
    def cuts(self) -> list[slice]:
        return spans(self.numel, self.num_shards)

    def config(self, cut: slice) -> ShardConfig:
        """Learning rate -1: with SGD a push is added to the parameters, so that they count."""
        update = SliceUpdate(self.rule, 0.0, cut.stop - cut.start, CPU)
        return ShardConfig(update, lambda examples: -1.0, self.quorum)


@dataclass
class Cluster:
    """Running shards and one store for each worker, all of which have joined."""

    stores: list[ParameterStore]
    shards: list[Shard]
    servers: list[ShardServer] | list[ProcessGroupShardServer]
    """Empty on the local transport."""
    world: LocalWorld | None
    folder: Path = Path()

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
            shards = [local_shard(setting.config(cut), zeros[cut], num_workers) for cut in setting.cuts]
            server = LocalServer(world, shards)
            yield Cluster([LocalStore(server, worker) for worker in range(num_workers)], shards, [], world)
            return
        name = f"g{next(self.generations)}"
        (self.folder / name).mkdir()
        servers = [self._server(name, setting, index, num_workers) for index in range(setting.num_shards)]
        threads = [threading.Thread(target=server.serve, daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        connect = partial(connect_store, self.kind, self.folder / name, self.port, setting, num_workers=num_workers)
        stores = [connect(worker=worker) for worker in range(num_workers - absent)]
        try:
            yield Cluster(stores, [server.shard for server in servers], servers, None, self.folder / name)
        finally:
            for ending in [*stores, *servers]:
                ending.close()
            for thread in threads:
                thread.join(TIMEOUT_S)
                assert not thread.is_alive()

    def _server(
        self, name: str, setting: Setting, index: int, num_workers: int
    ) -> ShardServer | ProcessGroupShardServer:
        cut = setting.cuts[index]
        zeros = torch.zeros(cut.stop - cut.start)
        states = [initial_state(setting.rule, zeros) for _ in range(2)]
        if self.kind == "shared_memory":
            ring = mapped_ring(self.folder / name, num_workers, setting.numel, cut, zeros)
            shard = Shard(setting.config(cut), ring, states)
            return ShardServer(self.folder / name, index, cut, setting.numel, shard)
        shard = Shard(setting.config(cut), [zeros.clone() for _ in range(num_workers + 2)], states)
        assert self.rendezvous is not None
        return ProcessGroupShardServer(("127.0.0.1", self.rendezvous.port), name, index, num_workers, cut, shard)


def connect_store(
    kind: str, folder: Path, port: int, setting: Setting, *, worker: int, num_workers: int
) -> SharedMemoryStore | ProcessGroupStore:
    """A worker's side; also for processes of their own."""
    if kind == "shared_memory":
        return SharedMemoryStore(folder, worker, num_workers, setting.cuts, setting.num_slots)
    return ProcessGroupStore(("127.0.0.1", port), folder.name, worker, setting.cuts, setting.num_slots)


def push(store: ParameterStore, number: int, value: float | Tensor = 1.0, clock: int = 0, examples: int = 1) -> None:
    """Push minibatch `number` of epoch 0, filled with a value, and wait until it is applied."""
    begin_push(store, number, value, clock, examples)()


def begin_push(
    store: ParameterStore, number: int, value: float | Tensor = 1.0, clock: int = 0, examples: int = 1
) -> Callable[[], None]:
    """Begin to push; the result waits."""
    store.gradient_buffer().copy_(torch.as_tensor(value).expand(store.gradient_buffer().shape))
    return store.push(Push(PushIdentity(0, number, number), clock, examples)).wait
