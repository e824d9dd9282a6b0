"""Every contender takes three steps, so that the benchmark does not rot; and what it starts, it ends."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchmarks import quick
from benchmarks.measurement import proc
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import Ours, spec_of
from benchmarks.measurement.processes import MeasurementError, alone, together
from benchmarks.measurement.workload import DIGITS, Workload
from benchmarks.peers import bare_loop, ddp, limit, ray_pattern
from trainers.spec import DataSpec

pytestmark = pytest.mark.long

SHORT = Workload(DataSpec(name=DIGITS), warmup_steps=2, steps=3)

CONTENDERS: dict[str, Callable[[], Measurement]] = {
    "limit": lambda: limit.measure(SHORT),
    "limit with our products": lambda: limit.measure(replace(SHORT, our_products=True)),
    "ddp": lambda: ddp.measure(SHORT, ddp.DdpConfig()),
    "bare sync": lambda: bare_loop.measure(SHORT, Ours("sync")),
    "bare downpour": lambda: bare_loop.measure(SHORT, Ours("downpour")),
    "bare hybrid": lambda: bare_loop.measure(SHORT, Ours("hybrid", scheme="c")),
}


AT_LENGTH = {"limit with our products", "bare downpour", "bare hybrid"}
"""Run by `make test-all`: each does what another does, and one thing more."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in AT_LENGTH else ()) for name in CONTENDERS]
)
def test_contender_takes_three_steps(name: str) -> None:
    found = CONTENDERS[name]()
    assert found.examples_per_s > 0
    assert 0 < found.cpu_s_per_step < 5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("flat", [True, False])
def test_ray_pattern_takes_three_steps(mode: str, flat: bool) -> None:
    config = ray_pattern.RayConfig("sync" if mode == "sync" else "async", flat)
    assert ray_pattern.measure(SHORT, config).examples_per_s > 0


def fail() -> None:
    raise RuntimeError("on purpose")


def nap() -> None:
    time.sleep(60)


def test_a_failure_carries_its_traceback_and_leaves_no_process() -> None:
    before = set(proc.descendants(os.getpid()))
    with pytest.raises(MeasurementError, match="on purpose"):
        alone(fail)
    with pytest.raises(MeasurementError, match="longer than"):
        together(nap, [(), ()], timeout_s=0.3)
    left = {pid for pid in proc.descendants(os.getpid()) if "resource_tracker" not in proc.title(pid)}
    assert left <= before


def test_memory_of_this_process_is_found() -> None:
    found = proc.memory_bytes(os.getpid())
    assert 0 < found["Pss"] <= found["Rss"]
    parts = proc.composition(os.getpid())
    assert parts["private memory"] > 0
    assert not any("/" in origin for origin in parts)


@pytest.mark.parametrize("ours", quick.AVERAGED.values(), ids=lambda ours: ours.algorithm)
def test_those_that_average_are_specs_and_are_held_to_a_bound(ours: Ours) -> None:
    assert spec_of(SHORT, ours, examples=1000).algorithm.name == ours.algorithm
    assert ours.algorithm in {target.name.split()[0] for target, _, _ in quick.RATIOS}
