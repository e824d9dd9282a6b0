"""Mapped files inside the nodes and a process group between them: the bits of one node, and fewer bytes than a process
group alone."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.contracts.groups import Groups, in_threads, join, rendezvous_for
from tests.contracts.test_collectives import NUMEL, leaf, reduced
from tests.equivalence import test_hybrid
from tests.equivalence.harness import Run, run_all_reduce
from tests.equivalence.test_sync import spec
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import TreeSum, joined, subtrees
from trainers.collectives.routes import Routes
from trainers.errors import PeerLost
from trainers.metrics import StepCounters
from trainers.training.work import synchronous

LAYOUTS = [(0, 0, 1, 1), (0, 1, 0, 1), (0, 1, 1, 1), (0, 0, 1, 2, 2)]


def run(kind: str, nodes: tuple[int, ...], folder: Path, body: Callable[[Collectives], object]) -> list:
    with rendezvous_for(kind) as rendezvous:
        return Groups(kind, folder, rendezvous, nodes=nodes).run(len(nodes), body)


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_the_canonical_sum_has_the_same_bits_wherever_the_workers_are(tmp_path: Path, nodes: tuple[int, ...]) -> None:
    found = run("hierarchical", nodes, tmp_path, lambda c: reduced(c, 7, rounds=3))
    leaves = {(i, i + 1): leaf(i) for i in range(7)}
    assert torch.equal(torch.cat(found), TreeSum(7, leaves).piece(0, NUMEL))


@pytest.mark.parametrize("nodes", LAYOUTS)
def test_everybody_elsewhere_has_one_carrier_on_each_node_and_all_of_a_node_carry(nodes: tuple[int, ...]) -> None:
    routes = Routes(nodes)
    for node in set(nodes):
        carriers = routes.carriers[node]
        assert set(carriers) == {k for k in range(len(nodes)) if nodes[k] != node}
        assert all(nodes[carrier] == node for carrier in carriers.values())
        loads = [len(routes.handled(k)) for k in routes.on(node)]
        assert sum(loads) == len(nodes)
        assert max(loads) - min(loads) <= 1


def test_neighbours_join_the_subtrees_that_they_hold_together() -> None:
    assert joined(5, [*subtrees(5, 0, 2), *subtrees(5, 2, 3)]) == [(0, 2), (2, 3)]
    assert joined(5, [*subtrees(5, 0, 3), *subtrees(5, 3, 4)]) == [(0, 4)]
    assert joined(8, [(0, 2), (6, 8)]) == [(0, 2), (6, 8)]
    assert joined(3, []) == []


def exchanged(c: Collectives, num_virtual: int, numel: int) -> tuple[StepCounters, int]:
    """A reduction and a gathering; then a broadcast, of which only the bytes between nodes are told."""
    reduction = Reduction(num_virtual, c.size, numel)
    c.reduce_canonical(reduction, c.parts(reduction)).wait()
    c.all_gather(c.replicated("vector", numel)).wait()
    before = c.meter.counted.model_copy()
    c.broadcast(torch.ones(numel), root=1).wait()
    return before, c.meter.counted.crossed_bytes - before.crossed_bytes


@pytest.mark.parametrize(("num_virtual", "nodes"), [(4, (0, 0, 1, 1)), (8, (0, 0, 1, 1)), (6, (0, 0, 0, 1, 1, 1))])
def test_between_nodes_one_vector_a_node_is_reduced_and_gathered(
    tmp_path: Path, num_virtual: int, nodes: tuple[int, ...]
) -> None:
    """M nodes of g workers, b bytes: with the sums of s subtrees on a node (s + 1) (M - 1)/M b leave it; g (t + 1)
    (M - 1)/M b by a process group alone, with t subtrees a worker."""
    numel = 64 * 60
    num_nodes, size = len(set(nodes)), len(nodes)
    share = 4 * numel * (num_nodes - 1) // num_nodes
    sums = len(Routes(nodes).sums(Reduction(num_virtual, size, numel), 0))
    alone = sum(len(Reduction(num_virtual, size, numel).nodes(k)) + 1 for k in Routes(nodes).on(0))
    crossed, broadcast = {}, {}
    for kind in ("hierarchical", "process_group"):
        found = run(kind, nodes, tmp_path / kind, lambda c: exchanged(c, num_virtual, numel))
        assert sum(t.sent_bytes for t, _ in found) == sum(t.received_bytes for t, _ in found)
        crossed[kind] = sum(t.crossed_bytes for (t, _), node in zip(found, nodes, strict=True) if node == 0)
        broadcast[kind] = [away for _, away in found if away]
    assert crossed == {"hierarchical": (sums + 1) * share, "process_group": alone * share}
    elsewhere = size - size // num_nodes
    assert broadcast == {"hierarchical": [4 * numel * (num_nodes - 1)], "process_group": [4 * numel * elsewhere]}
    assert crossed["process_group"] >= 2 * crossed["hierarchical"]


@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 0)])
@pytest.mark.parametrize("bucket_bytes", [1, 2**20])
def test_sync_has_the_bits_of_one_node_and_everybody_the_whole_version(
    tmp_path: Path, nodes: tuple[int, ...], bucket_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a bucket for each parameter, and one for all."""
    monkeypatch.setattr("trainers.collectives.beside.ordered_buckets.ordered_bucket_bytes", lambda size: bucket_bytes)
    here = Run(spec(5, len(nodes), epochs=1))
    contexts = [here.context() for _ in nodes]  # made here, since threads share torch's generator
    ranks = [here.ranks(rank, len(nodes)) for rank in range(len(nodes))]
    works = [list(synchronous(here.dataset, here.order, mine, 1)) for mine in ranks]

    def body(c: Collectives) -> dict[str, Tensor]:
        algorithm = here.spec.algorithm.build(replace(contexts[c.rank], collectives=c))
        for work in works[c.rank]:
            algorithm.step(work)
        newest = algorithm.local_state()
        return {"params": newest.params.clone()} | {name: v.clone() for name, v in newest.state.items()}

    whole = run_all_reduce(here).buffers
    assert whole is not None
    expected = {"params": whole.params} | whole.state
    assert len(expected) == 2
    for found in run("hierarchical", nodes, tmp_path, body):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], vector) for name, vector in expected.items())


def test_hybrid_keeps_its_bits_with_exchanges_under_way_during_a_reduction(tmp_path: Path) -> None:
    """Three workers, two on one node; what the reduction waits for in its call comes from the same program."""
    here = Run(test_hybrid.spec(5, 3, {"scheme": "c", "split": "outputs"}, epochs=1), test_hybrid.net)
    contexts = [here.context() for _ in range(3)]
    works = [list(synchronous(here.dataset, here.order, here.ranks(rank, 3), 1)) for rank in range(3)]

    def body(c: Collectives) -> Tensor:
        algorithm = here.spec.algorithm.build(replace(contexts[c.rank], collectives=c))
        for work in works[c.rank]:
            algorithm.step(work)
        return algorithm.gather_state().params

    found, *_ = run("hierarchical", (0, 1, 0), tmp_path, body)  # only the first has all of the fully connected layers
    assert torch.equal(found, run_all_reduce(here).params)


def _dies(folder: Path, port: int) -> None:
    c = join("hierarchical", folder, port, 0, rank=1, size=4, nodes=(0, 0, 1, 1))
    c.all_gather(c.replicated("vector", NUMEL)).wait()
    os.kill(os.getpid(), signal.SIGKILL)


def test_whoever_dies_is_missed_on_every_node_and_another_generation_forms(tmp_path: Path) -> None:
    """In a call inside which those of its node wait for it alone, and the others for them."""

    def body(c: Collectives) -> str:
        c.all_gather(c.replicated("vector", NUMEL)).wait()
        with pytest.raises(PeerLost):
            reduced(c, 5)
        return "lost"

    with rendezvous_for("hierarchical") as rendezvous:
        assert rendezvous is not None
        groups = Groups("hierarchical", tmp_path, rendezvous, nodes=(0, 0, 1, 1))
        process = multiprocessing.get_context("spawn").Process(target=_dies, args=(tmp_path, rendezvous.port))
        process.start()

        def member(rank: int) -> str:
            with groups.joined(0, rank, 4) as c:
                return body(c)

        assert in_threads([lambda rank=rank: member(rank) for rank in (0, 2, 3)]) == ["lost"] * 3
        process.join()
        groups.nodes = (0, 1, 1)
        next(groups.generations)
        found = groups.run(3, lambda c: reduced(c, 5))
        leaves = {(i, i + 1): leaf(i) for i in range(5)}
        assert torch.equal(torch.cat(found), TreeSum(5, leaves).piece(0, NUMEL))
