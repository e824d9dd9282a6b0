"""What the actors of a run tell each other: small, frozen, free of torch. Tensors travel beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.elastic.binding import CoreMap
from trainers.elastic.heartbeat import Printed
from trainers.parameter_server.endpoints import StoreEndpoint
from trainers.training.messages import GenerationEnd, RunLayout

if TYPE_CHECKING:
    from trainers.parameter_server.groups import GroupSlice
    from trainers.parameter_server.protocol import ParameterStore
    from trainers.parameter_server.server import Server


@dataclass(frozen=True)
class ActorLocation:
    """Where an actor runs."""

    name: str
    node_id: str
    node_ip: str
    pid: int
    actor_id: str = ""
    """Ray's own, by which its dashboard knows it."""


@dataclass(frozen=True, kw_only=True)
class Prepared(RunLayout):
    """What a worker tells when it has loaded model and data."""

    place: ActorLocation
    cores: CoreMap = field(default_factory=CoreMap)
    """Of its node, as far as it may use them."""
    memory_kills: int = -1
    """As in `Heartbeat`, of which it may not live to give one."""


@dataclass(frozen=True)
class StandbyLocation:
    """Where a second copy of a shard is."""

    place: ActorLocation
    folder: str
    """Of its files, as in a `StoreEndpoint`."""
    address: tuple[str, int]
    """Where it listens to the shard that serves."""
    token: int
    """What only that one knows."""


@dataclass(frozen=True)
class ShardStatus:
    """What a shard tells a coordinator that takes over."""

    endpoint: StoreEndpoint
    """As the shard was given it when it began to serve."""
    incarnation: int
    """By which its coordinator knew it when it last gave it a second copy."""


@dataclass(frozen=True)
class Delivered:
    """What the actor that calls the callbacks tells the coordinator."""

    seq: int = 0
    """The number of the last event that they were given; 0 where there was nothing new."""
    stop: str | None = None
    """Who asked to stop, and why."""
    evaluate: bool = False
    """Whether one asked to evaluate."""
    dropped: tuple[str, ...] = ()
    """What callbacks have raised that the run goes on without."""
    printed: Printed | None = None


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker tells a coordinator that takes over."""

    prepared: Prepared
    ended: GenerationEnd | None
    """How its last generation ended; none where it had none."""
    generation: int
    store_worker: int
    """The last number that it had at the shards; -1 where it had none."""


@dataclass(frozen=True, kw_only=True)
class ObjectStoreEndpoint(StoreEndpoint):
    """Workers and shards on any nodes, through Ray's object store."""

    actors: str
    """What the names of all shards' actors begin with."""

    def connect(self, folder: Path, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]) -> ParameterStore:
        from trainers.runtime.object_store import ObjectStore, named

        return ObjectStore(named(self.actors), self.worker, shards, num_slots, groups)

    def listen(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> Server[Any]:
        from trainers.runtime.object_store import ObjectShardServer

        return ObjectShardServer(pieces)
