"""`downpour` through shards that really serve: the bits of the local transport, on each of the others."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import TIMEOUT_S, in_threads, rendezvous_for
from tests.equivalence.harness import Run, run_through_shards
from tests.equivalence.test_downpour import spec
from trainers.algorithms.base import Algorithm
from trainers.elastic.lease_table import Lease, LeaseTable
from trainers.parameter_server.groups import GroupSlice
from trainers.parameter_server.process_group import ProcessGroupShardServer, ProcessGroupStore
from trainers.parameter_server.protocol import ParameterStore
from trainers.parameter_server.shard import Shard
from trainers.parameter_server.shared_memory import ShardServer, SharedMemoryStore, mapped_ring
from trainers.training.work import leased

KINDS = ["shared_memory", "process_group"]
LAYERWISE = {"push": "layerwise", "bucket_bytes": 1}
DELAYED = {"push": "layerwise", "backprop": {"groups": 4, "delay": 1}, "server_rule": "staleness_aware"}


@contextmanager
def serving(run: Run, kind: str, folder: Path) -> Iterator[tuple[list[ParameterStore], list[Shard]]]:
    """Shards that serve in threads of this process, and a store for each worker of the run."""
    workers, shards = run.spec.workers.count, run.layout.shards
    held = run.shards()
    with rendezvous_for(kind) as rendezvous:
        servers: list[ShardServer | ProcessGroupShardServer] = []
        for index, pieces in enumerate(held):
            if kind == "shared_memory":
                mapped = {group: in_file(folder, workers, run, piece) for group, piece in pieces.items()}
                servers.append(ShardServer(folder, index, run.layout.numel, mapped))
            else:
                assert rendezvous is not None
                address = ("127.0.0.1", rendezvous.port)
                servers.append(ProcessGroupShardServer(address, "g0", index, workers, pieces))
        threads = [threading.Thread(target=server.serve, daemon=True) for server in servers]
        for thread in threads:
            thread.start()
        stores: list[ParameterStore] = []
        for worker in range(workers):
            if kind == "shared_memory":
                stores.append(SharedMemoryStore(folder, worker, shards, 2, run.groups))
            else:
                stores.append(ProcessGroupStore(address, "g0", worker, shards, 2, run.groups))
        try:
            yield stores, [piece.shard for server in servers for piece in server.pieces.values()]
        finally:
            for ending in [*stores, *servers]:
                ending.close()
            for thread in threads:
                thread.join(TIMEOUT_S)


def in_file(folder: Path, workers: int, run: Run, piece: GroupSlice) -> GroupSlice:
    """The same piece with its versions in the mapped ring."""
    rows = mapped_ring(folder, workers, run.layout.numel, piece.span)
    rows[0].copy_(piece.shard.params)
    return GroupSlice(piece.span, Shard(piece.shard.config, rows, piece.shard.states))


def train(run: Run, kind: str, folder: Path) -> tuple[Tensor, LeaseTable]:
    """The whole run, on a thread for each worker."""
    ledger, lock = LeaseTable(run.order, run.spec.epochs, 6), threading.Lock()

    def lease(worker: int) -> Lease | None:
        with lock:
            return ledger.lease(worker)

    def worker(rank: int, algorithm: Algorithm) -> None:
        for work in leased(run.dataset, run.order, iter(lambda: lease(rank), None)):
            algorithm.step(work)
        algorithm.finish()

    with serving(run, kind, folder) as (stores, shards):
        algorithms = [
            run.spec.algorithm.build(run.context(store=store)) for store in stores
        ]  # tracing wants one thread
        in_threads([lambda rank=rank, mine=mine: worker(rank, mine) for rank, mine in enumerate(algorithms)])
        for rank, store in enumerate(stores):
            for push in store.applied:
                ledger.applied(rank, Lease(push.identity.epoch, push.identity.first, push.identity.last))
        return torch.cat([shard.params for shard in shards]).clone(), ledger


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "algorithm",
    [{}, LAYERWISE, LAYERWISE | {"num_push": 3, "num_fetch": 2, "max_staleness": 2}, DELAYED | {"max_staleness": 3}],
    ids=["whole", "layerwise", "accrued", "delayed"],
)
def test_one_worker_has_the_bits_of_the_local_transport(tmp_path: Path, kind: str, algorithm: dict) -> None:
    run = Run(spec(algorithm=algorithm, epochs=1))
    params, ledger = train(run, kind, tmp_path)
    assert torch.equal(params, run_through_shards(run).params)
    assert (ledger.audit(0).lost, ledger.audit(0).duplicated) == (0, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", [LAYERWISE, DELAYED], ids=["layerwise", "delayed"])
def test_every_example_once_with_several_workers_at_once(tmp_path: Path, kind: str, algorithm: dict) -> None:
    run = Run(spec(3, algorithm=algorithm | {"max_staleness": 4}))
    _, ledger = train(run, kind, tmp_path)
    for epoch in range(2):
        audit = ledger.audit(epoch)
        assert (audit.trained, audit.lost, audit.duplicated) == (203, 0, 0)
