"""How a worker reaches the other workers of its generation: one class a transport. The coordinator makes them, so
nothing here imports torch before a worker connects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.links.rendezvous import Address

if TYPE_CHECKING:
    import torch

    from trainers.collectives.group_forming import GroupConfig
    from trainers.collectives.protocol import Collectives


@dataclass(frozen=True)
class CollectivesEndpoint(ABC):
    """One worker's."""

    generation: int
    """Each group of workers that is formed has a number of its own."""
    rank: int
    size: int

    @property
    def name(self) -> str:
        """Of the generation's folder, or of its process group."""
        return f"g{self.generation}"

    @property
    def shares_memory(self) -> bool:
        """Whether all workers of the generation map the same files."""
        return False

    @abstractmethod
    def connect(
        self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False
    ) -> Collectives | None:
        """Join the generation; None where its workers never exchange anything.

        Args:
            folder: The run's on this node.
            device: Where this worker's vectors lie.
            given_up: Whether to wait for the others no longer.

        Raises:
            PeerLost: Not all came in time, or before they were given up.
        """


@dataclass(frozen=True)
class SharedMemoryEndpoint(CollectivesEndpoint):
    """All workers are on one node, and compute on its CPUs or on one and the same GPU."""

    @property
    def shares_memory(self) -> bool:
        return True

    def connect(self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False) -> Collectives:
        from trainers.collectives.shared_memory import SharedMemoryCollectives

        own = folder / self.name
        own.mkdir(exist_ok=True)
        return SharedMemoryCollectives(own, self.rank, self.size, given_up, device)


@dataclass(frozen=True)
class ProcessGroupEndpoint(CollectivesEndpoint):
    """Workers on any nodes, or each with a GPU of its own."""

    address: Address
    """Of the rendezvous."""
    nodes: tuple[int, ...]
    """The number of the node on which each of the workers is."""
    through_host: bool = False
    """Whether vectors lie in the memory of the host though the workers have GPUs: NCCL takes one worker a GPU."""

    def connect(self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False) -> Collectives:
        from trainers.collectives.process_group import ProcessGroupCollectives

        return ProcessGroupCollectives(self.config(device), given_up)

    def config(self, device: torch.device) -> GroupConfig:
        """Of the process group."""
        import torch

        from trainers.collectives.group_forming import GroupConfig

        if self.through_host:
            device = torch.device("cpu")
        return GroupConfig(self.address, self.name, self.rank, self.size, device, nodes=self.nodes)


@dataclass(frozen=True)
class HierarchicalEndpoint(ProcessGroupEndpoint):
    """Workers on several nodes, some of which share one."""

    def connect(self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False) -> Collectives:
        from trainers.collectives.hierarchical import join_hierarchical

        (folder / self.name).mkdir(exist_ok=True)
        own = folder / self.name / f"node-{self.nodes[self.rank]}"  # nodes may be one machine's, with one file system
        own.mkdir(exist_ok=True)
        return join_hierarchical(self.config(device), own, given_up)


@dataclass(frozen=True)
class IndependentEndpoint(CollectivesEndpoint):
    """Workers that exchange gradients through the shards alone."""

    on_one_node: bool

    @property
    def shares_memory(self) -> bool:
        return self.on_one_node

    def connect(self, folder: Path, device: torch.device, given_up: Callable[[], bool] = lambda: False) -> None:
        return None
