"""Messages that are lost on wires through Ray's object store, and shards whose process dies: each push counts once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
import torch

from tests.contracts.hosts import RemoteServer, end_hosts
from tests.contracts.shards import Setting, Stores, lossy_pushes, push
from trainers import ClusterInfo
from trainers.errors import PeerLost
from trainers.parameter_server import client
from trainers.parameter_server.protocol import ParameterStore
from trainers.runtime import object_store
from trainers.runtime.object_store import ShardWire

PUSHES = 20


@pytest.fixture
def stores(cluster: ClusterInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    monkeypatch.setattr(client, "PATIENCE_S", 0.05)
    yield Stores("object_store", tmp_path, None)
    end_hosts()


@pytest.mark.parametrize("quorum", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.long
def test_each_push_is_applied_once_though_a_fifth_of_what_is_said_is_lost(stores: Stores, quorum: int) -> None:
    with stores.cluster(2, Setting(quorum=quorum)) as cluster:
        hosts = [server.host for server in cluster.servers if isinstance(server, RemoteServer)]
        ray.get([host.drop_replies.remote(seed) for seed, host in enumerate(hosts)])
        cluster.run(*[lossy_pushes(rank, PUSHES, quorum) for rank in range(2)])
        updates = PUSHES if quorum else 2 * PUSHES
        assert sum(ray.get([host.lost.remote() for host in hosts])) > updates / 5
        assert torch.equal(cluster.params, torch.full_like(cluster.params, float(updates)))
        assert all(shard.version == updates for shard in cluster.shards)
        assert all(shard.applied.minibatches(0) == set(range(2 * PUSHES)) for shard in cluster.shards)
        assert all(shard.examples == 2 * PUSHES for shard in cluster.shards)


@pytest.mark.long
def test_a_large_vector_goes_through_the_store_and_workers_share_one_copy_of_a_version(stores: Stores) -> None:
    setting = Setting(numel=64 * 2000)

    def body(store: ParameterStore) -> float:
        params = store.fetch(0).wait().params
        assert bool((params == params[0]).all())
        return float(params[0])

    with stores.cluster(3, setting) as cluster:
        cluster.run(lambda store: push(store, 0, 2.0, clock=1))
        assert cluster.run(body, body, body) == [2.0] * 3
        hosts = [server.host for server in cluster.servers if isinstance(server, RemoteServer)]
        assert ray.get([host.copies.remote() for host in hosts]) == [1, 1]


def test_messages_that_ray_delivers_out_of_their_order_are_heard_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = ShardWire()
    wire.deliver(1, (b"second", []))
    wire.deliver(2, (b"third", []))
    wire.deliver(0, (b"first", []))
    assert [wire.receive() for _ in range(3)] == [b"first", b"second", b"third"]
    monkeypatch.setattr(object_store, "SILENCE_S", 0.0)
    monkeypatch.setattr(object_store, "POLL_S", 0.01)
    with pytest.raises(PeerLost):
        wire.receive()
