"""The shard actor: serves a slice of the parameters on one thread."""

import os
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np
import ray

from trainers.errors import Superseded
from trainers.parameter_server.endpoints import ProcessGroupStoreEndpoint, StoreEndpoint
from trainers.runtime.actors.base import BaseActor, limit_threads, use_code
from trainers.runtime.gone import GONE
from trainers.runtime.messages import ActorLocation, ShardStatus, StandbyLocation
from trainers.runtime.node_folder import node_folder
from trainers.spec import TrainSpec
from trainers.training.messages import RunLayout

if TYPE_CHECKING:
    from trainers.parameter_server.memory import MemoryPlan
    from trainers.parameter_server.server import Server
    from trainers.runtime.object_store import WireHub
    from trainers.training.shard_setup import ShardSetup
    from trainers.training.version_parts import VersionPart

GROUPS = {"serve": 1, "control": 4, "snapshot": 2}
OBJECT_STORE_GROUPS = {"tell": 1}
"""Beside these, where workers call the shard; and `listen`, with a thread for each of them."""

ASK_AGAIN_S = 0.5
"""Between two questions to a coordinator that is not there."""


class ShardActor(BaseActor):
    """One shard of the parameter server."""

    def __init__(
        self, name: str, job_id: str, spec: TrainSpec, index: int, *, coordinator_name: str | None = None
    ) -> None:
        super().__init__(name, job_id, coordinator_name)
        self.spec = spec
        self.index = index
        self.folder = node_folder(job_id)
        self.server: Server[Any]
        self.wire_hub: WireHub | None = None  # where workers call this actor, once it listens
        self.endpoint: StoreEndpoint | None = None  # how they reach it, likewise
        self.incarnation = 0

    def prepare(self) -> ActorLocation:
        """Import what takes long, while the workers load their data."""
        use_code(self.spec.code is not None)
        limit_threads(1)
        import torch

        torch.set_num_threads(1)
        return self.place()

    def open(self, endpoint: StoreEndpoint, prepared: RunLayout, start: dict[str, np.ndarray]) -> None:
        """Take the first version of the slice, and listen.

        Args:
            endpoint: How workers reach this shard.
            prepared: The layout.
            start: Vectors (P,) as `Worker.initial` gives them.
        """
        from trainers.training.version_parts import first_part

        self._listen(endpoint, prepared, first_part(prepared, self.index, start), recovers=False)

    def recover(self, endpoint: StoreEndpoint, prepared: RunLayout, last: "VersionPart | None" = None) -> int:
        """Go on in place of this shard's process that died, and listen where that did; workers come back by themselves.

        Args:
            endpoint: As the dead one was given it.
            prepared: Likewise.
            last: A `snapshot` of this shard, to begin from where its memory is gone or was not kept.

        Returns:
            The version that it goes on from.

        Raises:
            ShardLost: There is neither memory nor a snapshot.
        """
        self._listen(endpoint, prepared, last, recovers=True)
        return self.server.first.shard.version

    def serve(self) -> None:
        """Answer workers until `close`."""
        try:
            self.server.serve()
        except Superseded:
            os._exit(1)  # as if it were dead, which it was taken for

    def replicate_to(self, copy: StandbyLocation, coordinator: Any, incarnation: int) -> None:
        """Have a copy on another node, from now on, of all that this shard writes down; in place of the one before.

        Args:
            copy: Which listens.
            coordinator: Is asked, through `release_standby`, before this shard goes on without the copy.
            incarnation: By which it knows this process of the shard.

        Raises:
            PeerLost: There is no such copy, or it does not answer.
        """
        from trainers.parameter_server.standby import Replicator

        self.incarnation = incarnation

        def released(why: str) -> bool:
            while True:
                try:
                    return bool(
                        ray.get(coordinator.release_standby.remote(self.index, incarnation, copy.place.name, why))
                    )
                except GONE:  # it comes back, or this actor's lease ends
                    time.sleep(ASK_AGAIN_S)

        replicator = Replicator(copy.address, copy.token, self.server.pieces, released)
        self.server.ask(replicator.begin)

    def status(self) -> ShardStatus | None:
        """What a coordinator that takes over must know; nothing where this shard does not listen yet."""
        return None if self.endpoint is None else ShardStatus(self.endpoint, self.incarnation)

    def meet(self, endpoint: StoreEndpoint) -> None:
        """Have the workers to come find this shard where they meet now.

        Raises:
            PeerLost: Nobody is there.
        """
        from trainers.parameter_server.process_group import ProcessGroupShardServer

        if isinstance(self.server, ProcessGroupShardServer) and isinstance(endpoint, ProcessGroupStoreEndpoint):
            self.server.announce(endpoint.address)

    def snapshot(self, version: int) -> "tuple[int, VersionPart]":
        """How many updates have been made, and a copy of the slice with all that belongs to it, as soon as they are at
        least `version`."""
        from trainers.training.version_parts import part_of_shard

        taken: Future[VersionPart] = Future()
        self.server.at_version(version, lambda _: taken.set_result(part_of_shard(self.server.pieces.items())))
        part = taken.result()
        return self.version(), part

    def version(self) -> int:
        """Updates made so far."""
        return self.server.ask(lambda: self.server.first.shard.version)

    def prepare_generation(self, version: int) -> None:
        """Between two generations: let go of all workers (they get `StoreClosed`), forget every push that is not
        applied, and go back to `version` if this shard is one ahead.

        Args:
            version: Of the shard that is furthest behind.

        Raises:
            RunFailed: This shard cannot go back so far.
        """
        self.server.ask(lambda: self.server.prepare_generation(version))

    def applied(self) -> tuple[tuple[int, ...], ...]:
        """What was applied: rows of epoch, group, first and last minibatch."""
        from trainers.training.version_parts import applied_to

        return self.server.ask(lambda: applied_to(self.server.pieces.values()))

    def lost(self) -> int:
        """Updates that workers had heard of when they came back to this process and that it does not have."""
        return self.server.lost

    def close(self) -> None:
        """End `serve`."""
        self.server.close()

    def tell(self, wire: int, number: int, message: bytes, payload: list[Any]) -> None:
        """A worker says something on a wire through the object store."""
        if self.wire_hub is not None:
            self.wire_hub.tell(wire, number, message, payload)

    def listen(self, wire: int) -> tuple[list[tuple[bytes, list[Any]]], bool]:
        """A worker asks what there is to say to it; and whether that was the last."""
        return ([], True) if self.wire_hub is None else self.wire_hub.listen(wire)

    def _listen(self, endpoint: StoreEndpoint, layout: RunLayout, first: "VersionPart | None", recovers: bool) -> None:
        from trainers.runtime.object_store import ObjectShardServer

        setup, plan = self._setup(layout), self._plan(endpoint)
        pieces = setup.pieces(plan, endpoint.maps_versions)
        setup.begin(pieces.items(), first, recovers)
        server = self.server = endpoint.listen(plan.folder, self.index, layout.numel, pieces)
        if isinstance(server, ObjectShardServer):
            self.wire_hub = server.wire_hub
        self.endpoint = endpoint

    def _setup(self, layout: RunLayout) -> "ShardSetup":
        from trainers.training.shard_setup import ShardSetup

        return ShardSetup(self.spec, layout, self.index)

    def _plan(self, endpoint: StoreEndpoint) -> "MemoryPlan":
        """In a folder that is made if need be."""
        from trainers.parameter_server.memory import MemoryPlan

        folder = self.folder / endpoint.folder
        folder.mkdir(mode=0o700, exist_ok=True)
        return MemoryPlan(folder, self.index, endpoint.capacity, self.spec.ps.replicas)
