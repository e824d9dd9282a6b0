"""How workers reach the shards, and how shards listen: one class a transport. The coordinator makes them, so nothing
here imports torch before a worker connects or a shard listens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.links.rendezvous import Address
from trainers.links.tcp import SILENT_S

if TYPE_CHECKING:
    from trainers.parameter_server.groups import GroupSlice
    from trainers.parameter_server.protocol import ParameterStore
    from trainers.parameter_server.server import Server

PREFIX = "g0"
"""Under which shards that are reached by TCP are found at the rendezvous: they serve all generations of a run."""


@dataclass(frozen=True)
class StoreEndpoint(ABC):
    """One worker's way to the shards, or one shard's way to listen."""

    capacity: int
    """How many workers may be connected at a time."""
    folder: str = "shards"
    """Where shards keep their files, in the run's folder on their nodes."""
    worker: int = 0
    """A number that no worker had before this one."""

    maps_versions: ClassVar[bool] = False
    """Whether workers read versions where the shards write them."""
    allows_standby: ClassVar[bool] = False
    """Whether a shard can have a second copy on another node."""

    @abstractmethod
    def connect(self, folder: Path, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]) -> ParameterStore:
        """A worker's side.

        Args:
            folder: The run's on this node.
            shards: Their slices of the flat vector.
            num_slots: Gradient buffers.
            groups: Parts of the vector that are pushed and fetched by themselves; none: the vector is one.

        Raises:
            StoreClosed: The shards have ended, or have no room for this worker.
        """

    @abstractmethod
    def listen(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> Server[Any]:
        """A shard's side.

        Args:
            folder: Of the shards' files on this node.
            index: The shard's.
            numel: Elements of the flat vector (P,).
            pieces: What the shard holds of each group.
        """


@dataclass(frozen=True)
class SharedMemoryStoreEndpoint(StoreEndpoint):
    """Workers and shards are on one node."""

    maps_versions: ClassVar[bool] = True

    def connect(self, folder: Path, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]) -> ParameterStore:
        from trainers.parameter_server.shared_memory import SharedMemoryStore

        return SharedMemoryStore(folder / self.folder, self.worker, shards, num_slots, groups)

    def listen(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> Server[Any]:
        from trainers.parameter_server.shared_memory import ShardServer

        return ShardServer(folder, index, numel, pieces)


@dataclass(frozen=True, kw_only=True)
class ProcessGroupStoreEndpoint(StoreEndpoint):
    """Workers and shards on any nodes, by TCP; beside the collectives of process groups."""

    address: Address
    """Of the rendezvous."""
    silent_s: float = SILENT_S
    """How long the other side of a connection may be silent before it counts as gone."""

    allows_standby: ClassVar[bool] = True

    def connect(self, folder: Path, shards: Sequence[slice], num_slots: int, groups: Sequence[slice]) -> ParameterStore:
        from trainers.parameter_server.process_group import ProcessGroupStore

        return ProcessGroupStore(self.address, PREFIX, self.worker, shards, num_slots, groups, self.silent_s)

    def listen(self, folder: Path, index: int, numel: int, pieces: dict[int, GroupSlice]) -> Server[Any]:
        from trainers.parameter_server.process_group import ProcessGroupShardServer

        return ProcessGroupShardServer(self.address, PREFIX, index, self.capacity, pieces, self.silent_s)
