"""The shard actor comes back: from its node's memory, from a snapshot, and under Ray."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from tests.contracts.shards import begin_push
from trainers.errors import RunFailed
from trainers.models.layout import SHARD_ALIGN
from trainers.optim.slices import spans
from trainers.parameter_server.endpoints import SharedMemoryStoreEndpoint
from trainers.parameter_server.shared_memory import SharedMemoryStore
from trainers.runtime.actor_pool import CONTROL, start_actor
from trainers.runtime.actors import shard as shard_module
from trainers.runtime.actors.shard import GROUPS, ShardActor
from trainers.runtime.node_folder import cleanup, node_folder
from trainers.spec import TrainSpec
from trainers.training.messages import RunLayout
from trainers.training.position import Position
from trainers.training.version_parts import VersionPart

NUMEL = 2 * SHARD_ALIGN
CUTS = spans(NUMEL, 2, SHARD_ALIGN)
ENDPOINT = SharedMemoryStoreEndpoint(3, "g0")
START = {"params": np.zeros(NUMEL, np.float32), "m": np.zeros(NUMEL, np.float32)}
LAYOUT = RunLayout(
    num_examples=1000, minibatches=1000, steps=1000, numel=NUMEL, shards=tuple((c.start, c.stop) for c in CUTS),
    device="cpu", position=Position(),
)  # fmt: skip


def spec(replicas: int) -> TrainSpec:
    """A push of -1 adds 1: SGD without decay at rate 1."""
    optimizer = {"name": "sgd", "lr": 1.0, "weight_decay": 0}
    ps = {"shards": 2, "replicas": replicas}
    return TrainSpec(data="digits", model="mlp", algorithm="downpour", optimizer=optimizer, ps=ps)  # type: ignore[arg-type]


class GuestShard(ShardActor):
    """A shard in the test's own process, which does not end with its lease."""

    def _own_process(self) -> None:
        pass


class Here:
    """Shard actors in this process, each serving in a thread."""

    def __init__(self, folder: Path, replicas: int) -> None:
        self.folder, self.replicas = folder, replicas
        self.actors = [self._actor(index) for index in range(2)]
        for actor in self.actors:
            actor.open(ENDPOINT, LAYOUT, {"params": START["params"]})
        self.threads = [self._serve(actor) for actor in self.actors]

    def crash(self, index: int) -> None:
        """End as if killed: connections break, nothing is said."""
        server = self.actors[index].server

        def end() -> None:
            for key in list(server.selector.get_map().values()):
                key.fileobj.close()  # type: ignore[union-attr]
            server.alarm.close()
            server.selector.close()

        server._end = end  # type: ignore[method-assign]
        server.close()
        self.threads[index].join()

    def recover(self, index: int, last: VersionPart | None) -> int:
        """Another actor in its place."""
        self.actors[index] = self._actor(index)
        version = self.actors[index].recover(ENDPOINT, LAYOUT, last)
        self.threads[index] = self._serve(self.actors[index])
        return version

    def close(self) -> None:
        """End all."""
        for actor, thread in zip(self.actors, self.threads, strict=True):
            actor.close()
            thread.join()

    def _actor(self, index: int) -> ShardActor:
        return GuestShard(f"here/shard/{index}", "here", spec(self.replicas), index)

    def _serve(self, actor: ShardActor) -> threading.Thread:
        thread = threading.Thread(target=actor.serve, daemon=True)
        thread.start()
        return thread


@contextmanager
def here(folder: Path, replicas: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    monkeypatch.setattr(shard_module, "node_folder", lambda job_id: folder)
    shards = Here(folder, replicas)
    try:
        yield shards
    finally:
        shards.close()


def train(store: SharedMemoryStore, numbers: range, shard_dies: Callable[[int], None] = lambda number: None) -> None:
    for number in numbers:
        store.fetch(number).wait()
        wait = begin_push(store, number, -1.0, number + 1)
        shard_dies(number)
        wait()


def test_a_shard_with_two_replicas_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with here(tmp_path, 2, monkeypatch) as shards:
        store = SharedMemoryStore(tmp_path / "g0", 0, CUTS, 2)

        def dies(number: int) -> None:
            if number % 3 == 2:
                shards.crash(number % 2)
                assert shards.recover(number % 2, None) >= number

        train(store, range(12), dies)
        assert bool((store.fetch(12).wait().params == 12).all())
        assert [actor.version() for actor in shards.actors] == [12, 12]
        assert [actor.lost() for actor in shards.actors] == [0, 0]
        assert [actor.applied() for actor in shards.actors] == [((0, 0, 0, 11),)] * 2
        store.close()


def test_a_shard_with_one_replica_comes_back_from_its_snapshot_and_says_what_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with here(tmp_path, 1, monkeypatch) as shards:
        store = SharedMemoryStore(tmp_path / "g0", 0, CUTS, 2)
        train(store, range(5))
        _, last = shards.actors[1].snapshot(5)
        train(store, range(5, 9))
        held = store.fetch(9).wait().params  # read in place, or copied: it must not change under the worker
        wait = begin_push(store, 9, -1.0, 10)
        wait()
        shards.crash(1)
        before = held.clone()
        assert shards.recover(1, last) == 5
        assert torch.equal(held, before)
        train(store, range(10, 12))
        params = store.fetch(12).wait().params
        assert [float(params[cut.start]) for cut in CUTS] == [12, 7]
        assert [actor.lost() for actor in shards.actors] == [0, 5]
        assert shards.actors[1].applied() == ((0, 0, 0, 4), (0, 0, 10, 11))
        store.close()


def test_a_shard_that_left_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with here(tmp_path, 1, monkeypatch) as shards:
        shards.crash(0)
        with pytest.raises(RunFailed, match="no snapshot"):
            shards.recover(0, None)
        shards.recover(0, replace(shards.actors[1].snapshot(0)[1], start=0))


@pytest.mark.usefixtures("cluster")
@pytest.mark.long
def test_a_new_actor_takes_the_place_of_one_that_was_killed() -> None:
    """While the worker goes on, and the other shard serves."""
    job = "shard-dies"

    def start(index: int, again: str = "") -> Any:
        name = f"{job}/shard/{index}{again}"  # the dead one's is taken for a while
        return start_actor(ShardActor, name, {"num_cpus": 0}, GROUPS, (name, job, spec(2), index))

    def control(method: Any, *arguments: Any) -> Any:
        return ray.get(method.options(concurrency_group=CONTROL).remote(*arguments))

    actors = [start(index) for index in range(2)]
    store = None
    try:
        locations = [control(actor.prepare) for actor in actors]
        for actor in actors:
            control(actor.open, ENDPOINT, LAYOUT, {"params": START["params"]})
            actor.serve.options(concurrency_group="serve").remote()
        store = SharedMemoryStore(node_folder(job) / "g0", 0, CUTS, 2)
        train(store, range(6))
        os.kill(locations[0].pid, signal.SIGKILL)
        recovered = threading.Event()

        def bring_back() -> None:
            ray.wait([actors[0].version.remote()])
            actors[0] = start(0, "-1")
            assert control(actors[0].recover, ENDPOINT, LAYOUT) == 6
            actors[0].serve.options(concurrency_group="serve").remote()
            recovered.set()

        thread = threading.Thread(target=bring_back)
        thread.start()
        train(store, range(6, 12))
        thread.join()
        assert recovered.is_set()
        assert bool((store.fetch(12).wait().params == 12).all())
        assert [control(actor.version) for actor in actors] == [12, 12]
        assert [control(actor.lost) for actor in actors] == [0, 0]
    finally:
        if store is not None:
            store.close()
        for actor in actors:
            ray.kill(actor)
        cleanup(job)
