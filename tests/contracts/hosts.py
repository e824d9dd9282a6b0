"""Shards inside Ray actors, for the store that goes through Ray's object store: each host serves one shard at a time,
of whichever cluster a test makes. Beside it what a test sees of them, in its own process."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import ray
import torch
from torch import Tensor

from trainers.errors import StoreClosed
from trainers.optim.rule import initial_state
from trainers.parameter_server.groups import GroupSlice, parts
from trainers.parameter_server.shard import Shard
from trainers.runtime import object_store
from trainers.runtime.object_store import ObjectShardServer, ObjectStore

if TYPE_CHECKING:
    from tests.contracts.shards import Setting

NAMESPACE = "contracts"
GROUPS = {"tell": 1, "listen": 16, "control": 16}
PAYLOAD_OF = object_store.payload_of
SEEN = ("params", "version", "examples", "applied", "clocks", "pinned", "staleness")
"""Of a shard, by tests."""


class Host:
    """An actor that serves a shard."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.taken: dict[int, tuple[threading.Event, dict[str, Any]]] = {}
        self.dropped = 0

    def open(self, setting: "Setting", index: int, capacity: int) -> int:
        """Serve a shard from zeros; how many pieces it has."""
        pieces = {}
        for group, span in parts(setting.cuts[index], setting.groups).items():
            zeros = torch.zeros(span.stop - span.start)
            states = [initial_state(setting.rule, zeros) for _ in range(2)]
            ring = [zeros.clone() for _ in range(capacity + 2)]
            pieces[group] = GroupSlice(span, Shard(setting.config(span), ring, states))
        self.puts = 0
        object_store.payload_of = self._counted
        self.server = ObjectShardServer(pieces)
        self.serving = threading.Thread(target=self.server.serve, daemon=True)
        self.serving.start()
        return len(pieces)

    def _counted(self, vector: Tensor) -> list[Any]:
        self.puts += 1
        return PAYLOAD_OF(vector)

    def tell(self, wire: int, number: int, message: bytes, payload: list[Any]) -> None:
        self.server.wire_hub.tell(wire, number, message, payload)

    def listen(self, wire: int) -> tuple[list[Any], bool]:
        return self.server.wire_hub.listen(wire)

    def piece(self, number: int) -> dict[str, Any]:
        """What tests look at of a piece."""
        shard = list(self.server.pieces.values())[number].shard
        try:
            return self.server.ask(lambda: seen(shard))
        except StoreClosed:
            return seen(shard)

    def channels(self) -> list[int]:
        """The workers that are connected."""
        return list(self.server.channels)

    def prepare_generation(self, version: int) -> None:
        self.server.ask(lambda: self.server.prepare_generation(version))

    def at_version(self, version: int) -> int:
        """Look at the first piece as soon as it is at a version; a number to ask for that with."""
        ready, found = self.taken.setdefault(len(self.taken), (threading.Event(), {}))
        self.server.at_version(version, lambda shard: (found.update(seen(shard)), ready.set()))
        return len(self.taken) - 1

    def as_it_was(self, number: int) -> dict[str, Any]:
        """What `at_version` was asked for, once it is there."""
        ready, found = self.taken[number]
        ready.wait()
        return found

    def drop_replies(self, seed: int) -> None:
        """Lose one reply in five to those who are connected, and one message of theirs in five."""
        dice = random.Random(seed)

        def sometimes(call: Callable[..., Any]) -> Callable[..., Any]:
            def dropping(*arguments: Any) -> Any:
                if dice.random() < 0.2:
                    self.dropped += 1
                    return None
                return call(*arguments)

            return dropping

        for channel in self.server.channels.values():
            channel.send_stored = sometimes(channel.send_stored)  # type: ignore[attr-defined]
        self.server._request = sometimes(self.server._request)  # type: ignore[method-assign]

    def copies(self) -> int:
        """How many versions were put into the store since the shard was opened."""
        return self.puts

    def lost(self) -> int:
        """How many were."""
        return self.dropped

    def close(self) -> None:
        self.server.close()
        self.serving.join(20)
        assert not self.serving.is_alive()


def seen(shard: Shard) -> dict[str, Any]:
    found = {name: getattr(shard, name) for name in SEEN}
    return found | {"params": shard.params.clone(), "clocks": dict(shard.clocks), "pinned": dict(shard.pinned)}


@dataclass
class RemotePiece:
    """A shard's piece as a test sees it."""

    host: Any
    number: int

    def __getattr__(self, name: str) -> Any:
        if name not in SEEN:
            raise AttributeError(name)
        return ray.get(self.host.piece.options(concurrency_group="control").remote(self.number))[name]


@dataclass
class RemoteServer:
    """A shard's server as a test sees it."""

    host: Any
    num_pieces: int
    waiting: list[threading.Thread] = field(default_factory=list)

    @property
    def first(self) -> Any:
        return SimpleNamespace(shard=RemotePiece(self.host, 0))

    @property
    def pieces(self) -> list[RemotePiece]:
        return [RemotePiece(self.host, number) for number in range(self.num_pieces)]

    @property
    def channels(self) -> list[int]:
        return list(self._call("channels"))

    def ask(self, question: Callable[[], Any]) -> Any:
        return question()

    def prepare_generation(self, version: int) -> None:
        self._call("prepare_generation", version)

    def at_version(self, version: int, action: Callable[[Any], Any]) -> None:
        number = self._call("at_version", version)

        def wait() -> None:
            action(SimpleNamespace(**self._call("as_it_was", number)))

        self.waiting.append(threading.Thread(target=wait, daemon=True))
        self.waiting[-1].start()

    def close(self) -> None:
        self._call("close")
        for thread in self.waiting:
            thread.join(5)

    def _call(self, method: str, *arguments: Any) -> Any:
        return ray.get(getattr(self.host, method).options(concurrency_group="control").remote(*arguments))


def host(index: int) -> Any:
    """The actor of a shard, started when it is first asked for."""
    actor = ray.remote(concurrency_groups=GROUPS)(Host)
    options = {"name": f"host-{index}", "namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached"}
    return actor.options(num_cpus=0, max_restarts=0, **options).remote()


def serve(setting: "Setting", capacity: int) -> list[RemoteServer]:
    """All shards of a setting, each in a host of its own."""
    hosts = [host(index) for index in range(setting.num_shards)]
    opened = [one.open.remote(setting, index, capacity) for index, one in enumerate(hosts)]
    return [RemoteServer(one, count) for one, count in zip(hosts, ray.get(opened), strict=True)]


def connect(folder: Path, setting: "Setting", worker: int) -> ObjectStore:
    """A worker's side; in a process that is not connected to Ray, to that at the address in the folder."""
    if not ray.is_initialized():
        ray.init((folder / "ray").read_text(), log_to_driver=False)
    return ObjectStore(
        lambda index: ray.get_actor(f"host-{index}", NAMESPACE), worker, setting.cuts, setting.num_slots, setting.groups
    )


def note_address(folder: Path) -> None:
    """Where `connect` finds this Ray."""
    (folder / "ray").write_text(ray.get_runtime_context().gcs_address)


def end_hosts() -> None:
    """Kill those that were started."""
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE:
            ray.kill(ray.get_actor(entry["name"], NAMESPACE))
