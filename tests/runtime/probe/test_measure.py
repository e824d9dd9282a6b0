"""Links of the session's Ray, measured."""

from pathlib import Path

import pytest

from tests.runtime.runs import left_behind
from trainers.cost.clusters.links import LinkTable
from trainers.errors import RunFailed
from trainers.runtime.probe import measure
from trainers.runtime.probe.link_end import one_way
from trainers.runtime.probe.measure import measure_links


def test_half_of_an_empty_way_there_and_back_is_the_way_back() -> None:
    calls = list[int]()
    found = one_way(calls.append, (4, 8), 0.0)
    assert len(found) == 2
    assert set(calls) == {0, 1, 2}  # elements of float32
    assert all(seconds >= 0 and cpu_s >= 0 for seconds, cpu_s in found)


@pytest.mark.usefixtures("cluster")
def test_each_transport_is_measured_on_a_node_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measure, "SIZES", (4096, 65_536))
    seen = list[tuple[int, int]]()
    table = measure_links((1, 2), budget_s=0.05, on_done=lambda done, of: seen.append((done, of)))
    assert seen == [(done, 6) for done in range(1, 7)]
    assert [(one.transport, one.at_once) for one in table.links] == [
        (transport, count) for transport in ("shared_memory", "process_group", "object_store") for count in (1, 2)
    ]
    for one in table.links:
        assert one.source == one.target == table.nodes[0].address
        assert [point.num_bytes for point in one.points] == [4096, 65_536]
        assert one.bytes_per_s > 0
        assert all(point.cpu_s >= 0 for point in one.points)
    assert LinkTable.model_validate_json(table.model_dump_json()) == table
    assert not list(Path("/dev/shm").glob("millrace-run-links-*"))
    assert left_behind("links") == []


@pytest.mark.usefixtures("cluster")
def test_a_node_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: object, case: measure.Case, pairs: object, window_s: float) -> list[list[float]]:
        import ray

        raise ray.exceptions.RayTaskError("send", "", ConnectionRefusedError("Connection refused"))

    monkeypatch.setattr(measure._Ends, "_seconds", refuses)
    with pytest.raises(RunFailed, match=r"cannot reach .* by shared_memory: Connection refused; a run needs that too"):
        measure_links((1,), budget_s=0.05)
