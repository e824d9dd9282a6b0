"""Which transport a generation gets, by the nodes and devices of its workers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from trainers.collectives.endpoints import (
    CollectivesEndpoint,
    HierarchicalEndpoint,
    IndependentEndpoint,
    ProcessGroupEndpoint,
    SharedMemoryEndpoint,
)
from trainers.errors import RunFailed
from trainers.parameter_server.endpoints import ProcessGroupStoreEndpoint, SharedMemoryStoreEndpoint, StoreEndpoint
from trainers.runtime.control.worker_group import WorkerGroup
from trainers.runtime.messages import ActorLocation, ObjectStoreEndpoint, Prepared
from trainers.runtime.topology import SPARE_WORKERS, STANDBY, Topology
from trainers.spec import TrainSpec
from trainers.training.position import Position


def worker(node: str, device: str = "cpu") -> Prepared:
    place = ActorLocation("a worker", node, "127.0.0.1", 1)
    return Prepared(
        place=place, num_examples=1, minibatches=1, steps=1, numel=1, shards=(), device=device, position=Position()
    )


@pytest.fixture
def topology(request: pytest.FixtureRequest) -> Iterator[Topology]:
    wanted = getattr(request, "param", "auto")
    spec = TrainSpec.model_validate({"data": "digits", "model": "mlp", "algorithm": "mixed", "transport": wanted})
    found = Topology(spec, "127.0.0.1")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("nodes", "device", "kind"),
    [
        ("aa", "cpu", SharedMemoryEndpoint),
        ("a", "cpu", SharedMemoryEndpoint),
        ("aa", "cuda GPU-1", SharedMemoryEndpoint),
        ("a", "cuda GPU-1", SharedMemoryEndpoint),
        ("ab", "cpu", ProcessGroupEndpoint),
        ("aab", "cpu", HierarchicalEndpoint),
        ("abab", "cpu", HierarchicalEndpoint),
        ("aab", "cuda GPU-1", ProcessGroupEndpoint),
    ],
)
def test_mapped_files_wherever_workers_share_a_node(
    topology: Topology, nodes: str, device: str, kind: type[CollectivesEndpoint]
) -> None:
    found = topology.form([worker(node, device) for node in nodes])
    assert {type(one) for one in found} == {kind}
    assert [(one.generation, one.rank, one.size) for one in found] == [
        (0, rank, len(nodes)) for rank in range(len(nodes))
    ]
    for one in found:
        assert one.shares_memory == (kind is SharedMemoryEndpoint)
        if isinstance(one, ProcessGroupEndpoint):
            assert one.nodes == tuple("ab".index(node) for node in nodes)
            assert topology.rendezvous is not None
            assert one.address == ("127.0.0.1", topology.rendezvous.port)
    assert (topology.rendezvous is None) == (kind is SharedMemoryEndpoint)


@pytest.mark.parametrize(
    ("gpus", "through_host"), [(("a 1", "a 2"), False), (("a 1", "b 1"), False), (("a 1", "a 1", "b 1"), True)]
)
def test_workers_with_a_gpu_each_use_nccl_and_others_the_memory_of_the_host(
    topology: Topology, gpus: tuple[str, ...], through_host: bool
) -> None:
    places = [gpu.split() for gpu in gpus]
    found = topology.form([worker(node, f"cuda {node}{number}") for node, number in places])
    gpu = torch.device("cuda", 0)
    for one in found:
        assert isinstance(one, ProcessGroupEndpoint)
        assert one.config(gpu).device == (torch.device("cpu") if through_host else gpu)


@pytest.mark.parametrize("topology", ["shared_memory"], indirect=True)
def test_shared_memory_on_several_gpus_is_refused(topology: Topology) -> None:
    assert type(topology.form([worker("a", "cuda 1"), worker("a", "cuda 1")])[0]) is SharedMemoryEndpoint
    with pytest.raises(RunFailed, match="2 GPUs, which share no memory"):
        topology.form([worker("a", "cuda 1"), worker("a", "cuda 2")])


@pytest.mark.parametrize("topology", ["process_group"], indirect=True)
def test_process_groups_alone_where_the_spec_says_so(topology: Topology) -> None:
    assert type(topology.form([worker("a"), worker("a"), worker("b")])[0]) is ProcessGroupEndpoint


@pytest.mark.parametrize("topology", ["shared_memory"], indirect=True)
def test_shared_memory_on_several_nodes_is_refused(topology: Topology) -> None:
    assert type(topology.form([worker("a"), worker("a")])[0]) is SharedMemoryEndpoint
    with pytest.raises(RunFailed, match="2 nodes, which share no memory"):
        topology.form([worker("a"), worker("a"), worker("b")])


@pytest.mark.parametrize(("nodes", "on_one_node"), [("aa", True), ("ab", False)])
def test_workers_that_only_know_the_shards_need_no_rendezvous_among_themselves(nodes: str, on_one_node: bool) -> None:
    spec = TrainSpec.model_validate({"data": "digits", "model": "mlp", "algorithm": "downpour"})
    topology = Topology(spec, "127.0.0.1")
    found = topology.form([worker(node) for node in nodes])
    assert found == [IndependentEndpoint(0, rank, 2, on_one_node) for rank in range(2)]
    assert found[0].connect(Path(), torch.device("cpu")) is None
    assert topology.rendezvous is None


@dataclass(eq=False)
class Somebody:
    """A worker as a team sees one."""

    number: int
    node: str


def test_workers_of_one_node_are_neighbours() -> None:
    """So that a node holds whole subtrees of the canonical sum."""
    workers = [Somebody(number, node) for number, node in enumerate("abcab")]
    group = WorkerGroup(0, workers, None)  # type: ignore[arg-type]
    group.change_members()
    assert [member.number for member in group.members] == [0, 3, 1, 4, 2]
    group.joining.append(Somebody(5, "b"))  # type: ignore[arg-type]
    group.change_members()
    assert [member.number for member in group.members] == [0, 3, 1, 4, 5, 2]


@pytest.mark.parametrize("topology", ["object_store"], indirect=True)
def test_the_object_store_is_for_shards_and_found_by_their_names(topology: Topology) -> None:
    shard = ActorLocation("job/shard/0", "b", "127.0.0.1", 1)
    found = topology.open_shards([worker("a"), worker("a")], [shard])
    assert found == ObjectStoreEndpoint(topology.spec.most_workers + SPARE_WORKERS, actors="job/shard")
    assert topology.rendezvous is None
    assert [topology.store_endpoint() for _ in range(2)] == [found, replace(found, worker=1)]
    assert type(topology.form([worker("a"), worker("a")])[0]) is SharedMemoryEndpoint


@pytest.mark.parametrize(("nodes", "kind"), [("aa", SharedMemoryStoreEndpoint), ("ab", ProcessGroupStoreEndpoint)])
def test_shards_that_serve_already_are_found_at_the_new_coordinator(
    topology: Topology, nodes: str, kind: type[StoreEndpoint]
) -> None:
    shard = ActorLocation("job/shard/0", nodes[1], "127.0.0.1", 1)
    served = topology.open_shards([worker(nodes[0])], [shard])
    assert type(served) is kind
    later = Topology(topology.spec, "127.0.0.1")
    found = later.reopen(replace(served, folder=f"{served.folder}{STANDBY}0-1"))
    assert (found.folder, found.capacity) == (served.folder, served.capacity)
    if isinstance(found, ProcessGroupStoreEndpoint):
        assert later.rendezvous is not None
        assert found.address == ("127.0.0.1", later.rendezvous.port)
    else:
        assert found == served
    later.close()


def test_the_object_store_without_shards_is_refused() -> None:
    fields = {"data": "digits", "model": "mlp", "transport": "object_store"}
    with pytest.raises(ValidationError, match="only shards are reached through the object store"):
        TrainSpec.model_validate(fields | {"algorithm": "sync"})
    assert TrainSpec.model_validate(fields | {"algorithm": "downpour"}).transport == "object_store"
