"""The benchmark of options on known figures; and a link lets through no more than it should."""

import subprocess
import sys
from typing import Any

import pytest

from benchmarks import benefits
from benchmarks.benefits import HERE, LINK, Option, Pair, Place
from benchmarks.links import endless, namespaces
from benchmarks.links.endless import Rate
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.statistics import Spread
from benchmarks.measurement.workload import DIGITS, Workload
from trainers.events import Metrics
from trainers.spec import DataSpec

WORK = Workload(DataSpec(name=DIGITS))


def report(time: float, examples: int, rate: float, waited_s: float = 0.0) -> tuple[float, Metrics]:
    metrics: dict[str, Any] = {
        "step": examples // 32, "epoch": 0.1, "examples": examples, "examples_per_s": rate, "loss": 1.0,
        "learning_rate": 0.1, "wait_data_s": 0.25, "wait_communication_s": waited_s, "compute_s": 0.5, "workers": 2,
        "staleness": {}, "sent_bytes": 960,
    }  # fmt: skip
    return time, Metrics.model_validate(metrics)


def test_a_rate_is_the_mean_of_what_the_workers_say_after_the_first_report() -> None:
    """The examples between two events jump by whole reports: here twice as many in the second of two seconds."""
    reports = [report(10.0, 320, 9.0, 9.0), report(11.0, 640, 470.0, 0.25), report(12.0, 1280, 490.0, 0.25)]
    assert endless.analyse(reports) == Rate(480.0, pytest.approx(0.25), sent_bytes=2.0)
    with pytest.raises(MeasurementError, match="nothing was trained"):
        endless.analyse([report(10.0, 320, 1.0), report(11.0, 320, 1.0)])


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((1.1, 1.02, 1.3, 1.2, 1.1), "benefit shown"),
        ((1.1, 1.2, 1.3), "none shown"),  # three of three may be chance
        ((1.1, 0.99, 1.3, 1.2, 1.1), "none shown"),
        ((0.9, 0.8, 0.99, 0.9, 0.9), "none shown, slower in every round"),
    ],
)
def test_a_benefit_is_shown_where_every_round_had_one(ratios: tuple[float, ...], expected: str) -> None:
    assert benefits.verdict(Spread(ratios)) == expected


def test_the_report_says_it_all() -> None:
    def pair(place: Place, option: Option, k: float) -> Pair:
        return Rate(1000.0 * k, 0.5), Rate(1000.0 * k * (1.5 if place is LINK else 1 / k), 0.25)

    factors = (0.8, 1.0, 1.1, 1.2, 0.9)
    rounds = {p.name: [{o.name: pair(p, o, k) for o in p.options} for k in factors] for p in (HERE, LINK)}
    text = benefits.markdown(WORK, (HERE, LINK), rounds, ("0.10", "0.20"))
    here, over = text.partition("## On a link of 1000 Mbit/s")[::2]
    line = "| sync, reduction: fast | 1,000 (800..1,200) "
    assert line + "| 1,000 (1,000..1,000) | 1.00 (0.83..1.25) | 50% | 25% | none shown |" in here
    assert line + "| 1,500 (1,200..1,800) | 1.50 (1.50..1.50) | 50% | 25% | benefit shown |" in over


@pytest.mark.parametrize("place", [HERE, LINK])
def test_every_option_is_a_spec_with_it_and_without_it(place: Place) -> None:
    for option in place.options:
        without, added = (benefits.spec_of(WORK, place, option, is_on) for is_on in (False, True))
        assert without.algorithm != added.algorithm
        assert without.model_copy(update={"algorithm": added.algorithm}) == added


SERVE = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 5555))
print("listens", flush=True)
connection, _ = listener.accept()
received, began = 0, None
while data := connection.recv(1 << 20):
    began = began or time.monotonic()
    received += len(data)
print(received, time.monotonic() - began)
"""
SEND = "import socket, sys; socket.create_connection((sys.argv[1], 5555)).sendall(bytes(500_000))"


@pytest.mark.skipif(not namespaces.is_possible(), reason="a link needs root and iproute2")
def test_a_link_lets_through_no_more_than_its_rate_and_is_gone_afterwards() -> None:
    with namespaces.network(8.0) as names:  # 1 MB/s

        def python(name: str, code: str) -> "subprocess.Popen[str]":
            command = ["ip", "netns", "exec", name, sys.executable, "-c", code, namespaces.ADDRESSES[1]]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        with python(names[1], SERVE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "listens\n"
            with python(names[0], SEND) as client:
                assert client.wait() == 0
            received, seconds = server.stdout.readline().split()
        sent = namespaces.sent_bytes(names[0])
    assert int(received) == 500_000
    assert 500_000 < sent < 600_000  # with headers
    assert float(seconds) > 0.35  # but for what the bucket held at the beginning; a busy machine takes only longer
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not set(names) & set(left.split())
