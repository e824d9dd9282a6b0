"""Replies that are lost on connections that live: a worker asks again, and each push counts once."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.contracts.groups import rendezvous_for
from tests.contracts.shards import Setting, Stores, lossy_pushes
from trainers.parameter_server import client
from trainers.parameter_server.server import Server

PUSHES = 60


@pytest.fixture(params=["shared_memory", "process_group"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stores]:
    monkeypatch.setattr(client, "PATIENCE_S", 0.02)
    with rendezvous_for(request.param) as rendezvous:
        yield Stores(request.param, tmp_path, rendezvous)


def drop_replies(server: Server, dice: random.Random, dropped: list[bytes]) -> None:
    """One reply in five gets lost on its way to the channel."""
    for channel in server.channels.values():

        def ring(message: bytes, *vector: torch.Tensor, ring=channel.send) -> None:  # type: ignore[no-untyped-def]
            if dice.random() < 0.2:
                dropped.append(message)
            else:
                ring(message, *vector)

        channel.send = ring  # type: ignore[method-assign]


@pytest.mark.parametrize("quorum", [0, 2])
def test_each_push_is_applied_once_though_a_fifth_of_the_replies_is_lost(stores: Stores, quorum: int) -> None:
    dropped: list[bytes] = []

    with stores.cluster(2, Setting(quorum=quorum)) as cluster:
        for i, server in enumerate(cluster.servers):
            drop_replies(server, random.Random(i), dropped)
        cluster.run(*[lossy_pushes(rank, PUSHES, quorum) for rank in range(2)])
        updates = PUSHES if quorum else 2 * PUSHES
        assert len(dropped) > updates / 5
        assert torch.equal(cluster.params, torch.full_like(cluster.params, float(updates)))
        assert all(shard.version == updates for shard in cluster.shards)
        assert all(shard.applied.minibatches(0) == set(range(2 * PUSHES)) for shard in cluster.shards)
        assert all(shard.examples == 2 * PUSHES for shard in cluster.shards)
