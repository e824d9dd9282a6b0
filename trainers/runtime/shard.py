"""The shard actor: serves a slice of the parameters on one thread."""

import os
import threading
import time
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import ray

from trainers.errors import ShardLost, Superseded
from trainers.runtime.member import Member, limit_threads
from trainers.runtime.messages import CopyPlace, Exchange, Place, Prepared, Standing
from trainers.runtime.node_folder import node_folder
from trainers.spec import TrainSpec

if TYPE_CHECKING:
    from trainers.runtime.object_store import Reception
    from trainers.store.groups import Piece
    from trainers.store.shard import Shard, ShardConfig
    from trainers.transport.process_group_store import ProcessGroupShardServer
    from trainers.transport.shard_memory import Plan
    from trainers.transport.shared_store import ShardServer
    from trainers.transport.wired_store import WiredServer

GROUPS = {"serve": 1, "control": 4, "snapshot": 2}
OBJECT_STORE_GROUPS = {"tell": 1}
"""Beside these, where workers call the shard; and `listen`, with a thread for each of them."""

ASK_AGAIN_S = 0.5
"""Between two questions to a coordinator that is not there."""


class ShardActor(Member):
    """One shard of the parameter server."""

    def __init__(self, name: str, job_id: str, spec: TrainSpec, index: int) -> None:
        super().__init__(name, job_id)
        self.spec = spec
        self.index = index
        self.server: ShardServer | WiredServer
        self.reception: Reception | None = None  # where workers call this actor, once it listens
        self.exchange: Exchange | None = None  # how they reach it, likewise
        self.reign = 0

    def prepare(self) -> Place:
        """Import what takes long, while the workers load their data."""
        limit_threads(1)
        import torch

        torch.set_num_threads(1)
        return self.place()

    def open(self, exchange: Exchange, prepared: Prepared, start: dict[str, np.ndarray]) -> None:
        """Take the first version of the slice, and listen.

        Args:
            exchange: How workers reach this shard; its `size` is how many it has room for at a time.
            prepared: The layout.
            start: Vectors (P,) as `Worker.initial` gives them.
        """
        self._listen(exchange, prepared, first_slice(prepared, self.index, start), recovers=False)

    def recover(self, exchange: Exchange, prepared: Prepared, last: dict[str, Any] | None = None) -> int:
        """Go on in place of this shard's process that died, and listen where that did; workers come back by themselves.

        Args:
            exchange: As the dead one was given it.
            prepared: Likewise.
            last: A `snapshot` of this shard, to begin from where its memory is gone or was not kept.

        Returns:
            The version that it goes on from.

        Raises:
            ShardLost: There is neither memory nor a snapshot.
        """
        self._listen(exchange, prepared, last, recovers=True)
        return self.server.first.shard.version

    def serve(self) -> None:
        """Answer workers until `close`."""
        try:
            self.server.serve()
        except Superseded:
            os._exit(1)  # as if it were dead, which it was taken for

    def ship_to(self, copy: CopyPlace, coordinator: Any, reign: int) -> None:
        """Have a copy on another node, from now on, of all that this shard writes down; in place of the one before.

        Args:
            copy: Which listens.
            coordinator: Is asked, through `parted`, before this shard goes on without the copy.
            reign: By which it knows this process of the shard.

        Raises:
            PeerLost: There is no such copy, or it does not answer.
        """
        from trainers.transport.shard_copy import Shipper

        self.reign = reign

        def released(why: str) -> bool:
            while True:
                try:
                    return bool(ray.get(coordinator.parted.remote(self.index, reign, copy.place.name, why)))
                except ray.exceptions.RayActorError:  # it comes back, or this actor's lease ends
                    time.sleep(ASK_AGAIN_S)

        shipper = Shipper(copy.address, copy.token, self.server.pieces, released)
        self.server.ask(shipper.begin)

    def standing(self) -> Standing | None:
        """What a coordinator that takes over must know; nothing where this shard does not listen yet."""
        return None if self.exchange is None else Standing(self.exchange, self.reign)

    def meet(self, exchange: Exchange) -> None:
        """Have the workers to come find this shard where they meet now.

        Raises:
            PeerLost: Nobody is there.
        """
        if exchange.transport == "process_group":
            assert exchange.address is not None
            cast("ProcessGroupShardServer", self.server).announce(exchange.address)

    def snapshot(self, version: int) -> tuple[int, dict[str, Any]]:
        """How many updates have been made, and a copy of the slice with all that belongs to it, as soon as they are at
        least `version`."""
        taken: dict[str, Any] = {}
        ready = threading.Event()

        def take(_: "Shard") -> None:
            taken.update(slice_of(self.server.pieces))
            ready.set()

        self.server.at_version(version, take)
        ready.wait()
        return self.version(), taken

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
        return self.server.ask(lambda: applied_in(self.server.pieces))

    def lost(self) -> int:
        """Updates that workers had heard of when they came back to this process and that it does not have."""
        return self.server.lost

    def close(self) -> None:
        """End `serve`."""
        self.server.close()

    def tell(self, wire: int, number: int, message: bytes, behind: list[Any]) -> None:
        """A worker says something on a wire through the object store."""
        if self.reception is not None:
            self.reception.tell(wire, number, message, behind)

    def listen(self, wire: int) -> tuple[list[tuple[bytes, list[Any]]], bool]:
        """A worker asks what there is to say to it; and whether that was the last."""
        return ([], True) if self.reception is None else self.reception.listen(wire)

    def _listen(self, exchange: Exchange, prepared: Prepared, first: dict[str, Any] | None, recovers: bool) -> None:
        from trainers.transport.shared_store import ShardServer

        plan = self._plan(exchange)
        is_shared = exchange.transport == "shared_memory"
        pieces = self._pieces(plan, prepared, is_shared)
        for group, piece in pieces.items():
            self._begin(piece, group, prepared, first, recovers)
        if is_shared:
            self.server = ShardServer(plan.folder, self.index, prepared.numel, pieces)
        elif exchange.transport == "object_store":
            from trainers.runtime.object_store import ObjectShardServer, Reception

            server = self.server = ObjectShardServer(pieces)
            self.reception = Reception(server.take)
        else:
            self.server = self._process_group_server(exchange, pieces)
        self.exchange = exchange

    def _plan(self, exchange: Exchange) -> "Plan":
        """In a folder that is made if need be."""
        from trainers.transport.shard_memory import Plan

        folder = node_folder(self.job_id) / exchange.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Plan(folder, self.index, exchange.size, self.spec.ps.replicas)

    def _pieces(self, plan: "Plan", prepared: Prepared, is_shared: bool) -> "dict[int, Piece]":
        """What this shard holds of each group of parameters: memory, with nothing in it yet."""
        from trainers.optim.rules import build_rule
        from trainers.store.groups import Piece, parts
        from trainers.store.shard import Shard
        from trainers.transport.shard_memory import journal_of, own_ring, two_states
        from trainers.transport.shared_store import mapped_ring

        cut = slice(*prepared.shards[self.index])
        numel = cut.stop - cut.start
        ring = mapped_ring(plan.folder, plan.capacity, prepared.numel, cut) if is_shared else own_ring(plan, numel)
        states = two_states(plan, build_rule(self.spec.optimizer).state_names, numel)
        pieces: dict[int, Piece] = {}
        for group, span in parts(cut, [slice(*span) for span in prepared.groups]).items():
            part = slice(span.start - cut.start, span.stop - cut.start)
            both = [{name: vector[part] for name, vector in state.items()} for state in states]
            journal = journal_of(plan, group, ring_is_read=is_shared)
            shard = Shard(self._config(prepared, span), [row[part] for row in ring], both, journal)
            pieces[group] = Piece(span, shard)
        return pieces

    def _begin(
        self, piece: "Piece", group: int, prepared: Prepared, first: dict[str, Any] | None, recovers: bool
    ) -> None:
        """Fill a piece with the last version that a dead process left, or with its part of `first`."""
        import torch

        from trainers.store.identity import IdentitySet
        from trainers.transport.shard_memory import left_in

        shard = piece.shard
        if recovers and (left := left_in(shard.journal)) is not None:
            shard.restore(left)
            return
        if first is None:
            raise ShardLost(f"shard {self.index} has left nothing from which it could go on, and there is no snapshot")
        begin = prepared.shards[self.index][0]
        part = slice(piece.span.start - begin, piece.span.stop - begin)
        # What comes from Ray's store is shared and must not be written: it is copied.
        params = torch.from_numpy(np.array(first["params"][part]))
        state = {name: torch.from_numpy(np.array(vector[part])) for name, vector in first["state"].items()}
        shard.applied = IdentitySet.from_json([list(row) for row in first["applied"] if row[1] == group])
        shard.examples, shard.learning_rate = int(first["examples"]), float(first["learning_rate"])
        shard.version = dict(first["versions"]).get(group, 0)
        shard.begin(params, state, recovers)

    def _config(self, prepared: Prepared, cut: slice) -> "ShardConfig":
        import torch

        from trainers.optim.rules import build_rule
        from trainers.optim.scaling import scaled_decay
        from trainers.optim.schedules import build_schedule
        from trainers.optim.update import SliceUpdate, within
        from trainers.store.shard import ShardConfig

        spec, algorithm = self.spec, self.spec.algorithm
        exempt = within([slice(*part) for part in prepared.exempt], cut)
        numel, cpu = cut.stop - cut.start, torch.device("cpu")
        update = SliceUpdate(build_rule(spec.optimizer), scaled_decay(spec), numel, cpu, exempt)
        quorum = algorithm.quorum(spec.workers.num_virtual)
        schedule = build_schedule(spec, prepared.num_examples)
        return ShardConfig(update, schedule, quorum, algorithm.num_backup, algorithm.divides_by_staleness)

    def _process_group_server(self, exchange: Exchange, pieces: "dict[int, Piece]") -> "ProcessGroupShardServer":
        from trainers.transport.process_group_store import ProcessGroupShardServer

        assert exchange.address is not None
        capacity = exchange.size
        return ProcessGroupShardServer(exchange.address, f"g{exchange.generation}", self.index, capacity, pieces)


def first_slice(prepared: Prepared, index: int, start: dict[str, np.ndarray]) -> dict[str, Any]:
    """A shard's slice of vectors (P,), where a run begins or is taken up; as `slice_of` gives one."""
    cut, position = slice(*prepared.shards[index]), prepared.position
    applied: Any = position["applied"]
    return {
        "start": cut.start,
        "params": start["params"][cut],
        "state": {name: vector[cut] for name, vector in start.items() if name != "params"},
        "applied": applied[index] if index < len(applied) else (),
        "examples": position["examples"],
        "learning_rate": position["learning_rate"],
        "versions": (),
    }


def applied_in(pieces: "dict[int, Piece]") -> tuple[tuple[int, ...], ...]:
    """What was applied to a shard's slice: rows of epoch, group, first and last minibatch."""
    return tuple(tuple(row) for piece in pieces.values() for row in piece.shard.applied.to_json())


def slice_of(pieces: "dict[int, Piece]") -> dict[str, Any]:
    """A copy of a shard's slice, put together from its pieces, with all that belongs to it."""
    held = list(pieces.values())
    shards = [piece.shard for piece in held]
    first = shards[0]
    return {
        "start": held[0].span.start,
        "params": np.concatenate([shard.params.numpy() for shard in shards]),
        "state": {name: np.concatenate([shard.state[name].numpy() for shard in shards]) for name in first.state},
        "applied": applied_in(pieces),
        "examples": min(shard.examples for shard in shards),
        "learning_rate": first.learning_rate,
        "versions": tuple((group, piece.shard.version) for group, piece in pieces.items()),
    }
