"""Described clusters: units, what is refused with its field, and the papers' four."""

import copy
from pathlib import Path
from typing import Any

import pytest

from trainers.cost.clusters.cluster import cluster_of, read_cluster, shipped_clusters
from trainers.cost.clusters.units import BYTES, FLOPS, RATES, TIMES, quantity
from trainers.errors import SpecRejected

GOOD: dict[str, Any] = {
    "name": "two nodes",
    "device": {"name": "GPU", "flops": "2 TFLOP/s"},
    "links": {"bus": {"bandwidth": "6 GB/s"}, "net": {"latency": "20 us", "bandwidth": "56 Gbit/s"}},
    "switches": [{"devices": 4, "count": 2}],
    "inside": "bus",
    "between": "net",
}


@pytest.mark.parametrize(
    ("written", "units", "means"),
    [
        ("6 GB/s", RATES, 6e9), ("56 Gbit/s", RATES, 7e9), ("1e3 MB/s", RATES, 1e9), (5.5, RATES, 5.5),
        ("20 us", TIMES, 2e-5), ("0.1ms", TIMES, 1e-4), ("2 TFLOP/s", FLOPS, 2e12), ("5 GB", BYTES, 5e9),
    ],
)  # fmt: skip
def test_a_quantity_is_read_into_si_units(written: Any, units: dict[str, float], means: float) -> None:
    assert quantity(written, units) == pytest.approx(means)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("links", "net", "bandwidth"), "56 Gb/h", "/links/net/bandwidth: 'Gb/h' is no unit here; use one of"),
        (("links", "net", "bandwidth"), "fast", "/links/net/bandwidth: 'fast' is no number with a unit"),
        (("links", "net", "bandwidth"), "-1 GB/s", "/links/net/bandwidth"),
        (("links", "net", "latency"), "1.2.3 us", "/links/net/latency: '1.2.3' is no number"),
        (("between",), "infiniband", "/between: there is no link 'infiniband'; name one of links: bus, net"),
        (("between",), "", "/between: a link is missing; name one of links: bus, net"),
        (("inside",), "", "/inside: a link is missing"),
        (("device", "flops"), "2 TFLOPS", "/device/flops: 'TFLOPS' is no unit here"),
        (("racks",), 2, "/racks"),
        (("switches",), [], "/switches"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(path: tuple[str, ...], value: Any, told: str) -> None:
    described = copy.deepcopy(GOOD)
    at = described
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = value
    with pytest.raises(SpecRejected) as error:
        cluster_of(described, "mine.yaml")
    assert str(error.value).startswith(f"mine.yaml: {told}")


def test_a_single_device_needs_no_link_inside() -> None:
    alone = cluster_of(GOOD | {"switches": [{"devices": 1}], "inside": "", "between": ""}, "")
    assert (alone.sizes, alone.num_devices) == ((1,), 1)


def test_the_papers_machines_are_shipped() -> None:
    found = {name: read_cluster(name) for name in shipped_clusters()}
    assert {name: cluster.num_devices for name, cluster in found.items()} == {
        "big-basin": 352, "ec2-g2": 32, "minotauro": 156, "one-weird-trick": 8,
    }  # fmt: skip
    assert all(cluster.name == name and cluster.source for name, cluster in found.items())


def test_a_file_that_is_not_there_and_one_that_is_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(SpecRejected, match="nor a cluster of that name; there are big-basin, ec2-g2"):
        read_cluster("nowhere.yaml")
    path = tmp_path / "mine.yaml"
    path.write_text("links: [")
    with pytest.raises(SpecRejected, match="it is no YAML"):
        read_cluster(str(path))
    path.write_text("")
    with pytest.raises(SpecRejected, match=r"mine\.yaml: this is a section"):
        read_cluster(str(path))
