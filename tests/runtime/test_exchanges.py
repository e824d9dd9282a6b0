"""Which transport a generation gets, by the nodes and devices of its workers."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from trainers.errors import RunFailed
from trainers.runtime.exchanges import Exchanges
from trainers.runtime.messages import Place, Prepared
from trainers.runtime.team import Team
from trainers.spec import TrainSpec


def worker(node: str, device: str = "cpu") -> Prepared:
    place = Place("a worker", node, "127.0.0.1", 1)
    return Prepared(place, 1, 1, 1, 1, (), device, {})


@pytest.fixture
def exchanges(request: pytest.FixtureRequest) -> Iterator[Exchanges]:
    wanted = getattr(request, "param", "auto")
    spec = TrainSpec.model_validate({"data": "digits", "model": "mlp", "algorithm": "mixed", "transport": wanted})
    found = Exchanges(spec, "127.0.0.1")
    yield found
    found.close()


@pytest.mark.parametrize(
    ("nodes", "device", "transport"),
    [
        ("aa", "cpu", "shared_memory"),
        ("a", "cpu", "shared_memory"),
        ("aa", "cuda", "process_group"),
        ("ab", "cpu", "process_group"),
        ("aab", "cpu", "composed"),
        ("abab", "cpu", "composed"),
        ("aab", "cuda", "process_group"),
    ],
)
def test_mapped_files_wherever_workers_share_a_node(
    exchanges: Exchanges, nodes: str, device: str, transport: str
) -> None:
    found = exchanges.form([worker(node, device) for node in nodes])
    assert {one.transport for one in found} == {transport}
    assert [one.rank for one in found] == list(range(len(nodes)))
    assert found[0].nodes == tuple("ab".index(node) for node in nodes)
    assert (found[0].address is None) == (transport == "shared_memory")


@pytest.mark.parametrize("exchanges", ["process_group"], indirect=True)
def test_process_groups_alone_where_the_spec_says_so(exchanges: Exchanges) -> None:
    assert exchanges.form([worker("a"), worker("a"), worker("b")])[0].transport == "process_group"


@pytest.mark.parametrize("exchanges", ["shared_memory"], indirect=True)
def test_shared_memory_on_several_nodes_is_refused(exchanges: Exchanges) -> None:
    assert exchanges.form([worker("a"), worker("a")])[0].transport == "shared_memory"
    with pytest.raises(RunFailed, match="2 nodes, which share no memory"):
        exchanges.form([worker("a"), worker("a"), worker("b")])


@dataclass(eq=False)
class Somebody:
    """A worker as a team sees one."""

    number: int
    node: str


def test_workers_of_one_node_are_neighbours() -> None:
    """So that a node holds whole subtrees of the canonical sum."""
    workers = [Somebody(number, node) for number, node in enumerate("abcab")]
    team = Team(0, workers, None)  # type: ignore[arg-type]
    team._change()
    assert [member.number for member in team.members] == [0, 3, 1, 4, 2]
    team.joining.append(Somebody(5, "b"))  # type: ignore[arg-type]
    team._change()
    assert [member.number for member in team.members] == [0, 3, 1, 4, 5, 2]


@pytest.mark.parametrize("exchanges", ["object_store"], indirect=True)
def test_the_object_store_is_for_shards_and_found_by_their_names(exchanges: Exchanges) -> None:
    shard = Place("job/shard/0", "b", "127.0.0.1", 1)
    found = exchanges.open_shards([worker("a"), worker("a")], [shard])
    assert (found.transport, found.folder, found.address) == ("object_store", "job/shard", None)
    assert exchanges.seat() == found
    assert exchanges.form([worker("a"), worker("a")])[0].transport == "shared_memory"


def test_the_object_store_without_shards_is_refused() -> None:
    fields = {"data": "digits", "model": "mlp", "transport": "object_store"}
    with pytest.raises(ValidationError, match="only shards are reached through the object store"):
        TrainSpec.model_validate(fields | {"algorithm": "sync"})
    assert TrainSpec.model_validate(fields | {"algorithm": "downpour"}).transport == "object_store"
