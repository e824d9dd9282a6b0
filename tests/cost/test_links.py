"""Measured links, and what a plan makes of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.cost.test_planning import profile_of, slow, spec_of
from trainers.cost.clusters.cluster import Cluster
from trainers.cost.clusters.links import (
    LinkNode,
    LinkPoint,
    LinkTable,
    LinkTransport,
    MeasuredLink,
    cluster_of_links,
    read_links,
)
from trainers.cost.plan import Plan, PlanRequest
from trainers.cost.planner import plan_spec
from trainers.errors import SpecRejected


def link(transport: LinkTransport, way: str, at_once: int, latency_s: float, each: float) -> MeasuredLink:
    sizes = (4096, 16_777_216)
    points = (LinkPoint(num_bytes=size, seconds=latency_s + size / each) for size in sizes)
    return MeasuredLink(transport=transport, source=way[0], target=way[1], at_once=at_once, points=tuple(points))


def table(num_nodes: int = 2, more: tuple[MeasuredLink, ...] = ()) -> LinkTable:
    """Nodes a and b of 4 CPUs. Between them one transfer has 1 GB/s, and four together 2 GB/s."""
    near = [link("shared_memory", way, 1, 1e-5, 8e9) for way in ("aa", "bb")[:num_nodes]]
    far = [link("process_group", "ab", 1, 1e-4, 1e9), link("process_group", "ab", 4, 4e-4, 0.5e9)] * (num_nodes - 1)
    nodes = tuple(LinkNode(address=name, cpus=4, gpus=0) for name in "ab"[:num_nodes])
    return LinkTable(nodes=nodes, links=(*near, *far, *more))


def planned(links: LinkTable, *workers: int, **fields: Any) -> Plan:
    spec = spec_of(workers={"count": 2, "virtual": 8}, **fields)
    return plan_spec(spec, PlanRequest(profile=profile_of(spec), links=links, workers=workers or None))


def test_latency_and_bandwidth_of_a_line_are_found() -> None:
    found = link("process_group", "ab", 1, 1e-4, 1e9)
    assert found.latency_s == pytest.approx(1e-4, rel=0.05)
    assert found.bytes_per_s == pytest.approx(1e9, rel=0.01)


def test_the_slowest_pair_stands_for_all_and_is_shared() -> None:
    slower = (link("process_group", "ac", 1, 3e-4, 0.9e9), link("process_group", "ac", 4, 3e-4, 0.25e9))
    found = cluster_of_links(table(more=slower), "d", spec_of())
    far = found.links["far"]
    assert far.latency == pytest.approx(3e-4, rel=0.05)
    assert far.each == pytest.approx(0.9e9, rel=0.01)
    assert far.bandwidth == pytest.approx(1e9, rel=0.01)  # 4 x 0.25
    assert found.sizes == (4, 4)


def test_one_transfer_reaches_no_more_than_by_itself_and_all_no_more_than_together() -> None:
    described = cluster_of_links(table(), "d", spec_of()).links["far"]
    cluster = Cluster.model_validate(
        {"name": "c", "device": {"name": "d"}, "links": {"l": described}, "switches": [{"devices": 4, "count": 2}],
         "inside": "l", "between": "l"}
    )  # fmt: skip
    from trainers.cost.schedules.fleet import Fleet, np

    fleet = Fleet(cluster, np.array([8]), np.array([8]), np.array([1]))
    for users, rate in ((1, 1e9), (2, 1e9), (4, 0.5e9)):
        assert fleet.between_lane(users).bytes_per_s[0] == pytest.approx(rate, rel=0.01)


def test_a_plan_of_measured_nodes() -> None:
    plan = planned(table())
    assert (plan.cluster, plan.basis, len(plan.candidates)) == ("2 measured nodes", "20 steps timed", 8)
    assert [each.nodes for each in plan.candidates] == [1, 1, 1, 1, 2, 2, 2, 2]
    quicker = planned(table(more=()).model_copy(update={"links": tuple(
        link(one.transport, one.source + one.target, one.at_once, one.latency_s / 10, 10 * one.bytes_per_s)
        for one in table().links
    )}))  # fmt: skip
    for before, after in zip(plan.candidates, quicker.candidates, strict=True):
        assert after.examples_per_s >= before.examples_per_s
    assert quicker.of(8).examples_per_s > plan.of(8).examples_per_s


def test_one_measured_node_is_planned_like_a_profile_whose_links_are_the_same() -> None:
    spec = spec_of(workers={"count": 2, "virtual": 4})
    own = profile_of(spec, link_latency_s=1e-5, link_bytes_per_s=8e9)
    expected = plan_spec(spec, PlanRequest(profile=own))
    found = plan_spec(spec, PlanRequest(profile=profile_of(spec), links=table(1)))
    for one, other in zip(found.candidates, expected.candidates, strict=True):
        assert one.examples_per_s == pytest.approx(other.examples_per_s, rel=1e-3)


def test_what_is_wrong_is_a_sentence(tmp_path: Path) -> None:
    spec = spec_of()
    with pytest.raises(SpecRejected, match=r"^links: a described cluster has its own links; leave one of the two out$"):
        plan_spec(spec, PlanRequest(cluster=slow(), links=table()))
    with pytest.raises(SpecRejected, match=r"^links: object_store was not measured among the processes of a node; run"):
        planned(table(), transport="object_store", algorithm="downpour")
    with pytest.raises(SpecRejected, match=r"none of the measured nodes has a device"):
        cluster_of_links(table(), "d", spec_of(workers={"count": 2, "gpus": 1}))
    with pytest.raises(SpecRejected, match=r"^links: .*links\.json cannot be read: No such file"):
        read_links(tmp_path / "links.json")
    (tmp_path / "links.json").write_text('{"nodes": []}')
    with pytest.raises(SpecRejected, match=r"is no table of links: /nodes: .*; `millrace links` makes one"):
        read_links(tmp_path / "links.json")
    with pytest.raises(SpecRejected, match=r"workers: 2 measured nodes has 8 devices, not 9"):
        planned(table(), 9)
