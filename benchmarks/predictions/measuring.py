"""Measures all jobs of a place, on one Ray that is started for them."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import trainers
from benchmarks.links import endless, namespaces
from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import SETTLE_S, follow
from benchmarks.measurement.others import Others
from benchmarks.measurement.processes import MeasurementError
from benchmarks.predictions.cases import Case, Place, workload
from benchmarks.predictions.ledger import Ledger
from benchmarks.predictions.yardstick import yardstick
from trainers.events import Metrics

WORKERS = 2
AT_ONCE = (1, 2)
GBIT = 8.0


@dataclass(frozen=True)
class Times:
    """How long is measured."""

    run_s: float = 6.0
    """Of a job, after its first steps."""
    links_s: float = 20.0
    """For all transfers of a place."""
    until: float = math.inf
    """By the clock of `time.time`; nothing is begun later."""


def measure_place(place: Place, cases: Sequence[Case], ledger: Ledger, times: Times) -> int:
    """Measure its links, where that is not done, and these jobs one after the other, each in the ledger at once, with
    the profile of a step from right before and right after it. Called in a process of its own, which stays on the
    first node.

    Returns:
        How many of the jobs failed.
    """
    failed = 0
    with _ray(place), yardstick(Case("sync", "auto", place).spec, WORKERS) as steps:
        if ledger.links(place) is None:
            links = trainers.measure_links(AT_ONCE, times.links_s)
            ledger.add("links", place=place.title, links=links.model_dump(mode="json"), load=machine.load())
        since, before = Others(), steps.measure()
        if not ledger.records("machine"):
            ledger.add("machine", machine=machine.describe())
        for case in cases:
            if time.time() > times.until:
                break
            try:
                measured = _measured(case, times.run_s)
            except MeasurementError as error:
                failed += 1
                print(f"{case.key}: {error}", flush=True)
                ledger.add("failed", case=case.key, why=str(error))
                continue
            mark, after = Others(), steps.measure()
            print(f"{case.key}: {measured['examples_per_s']:,.0f} examples/s", flush=True)
            about = {"commit": machine.commit(), "load": machine.load()}
            profile = steps.profile(before, after).model_dump(mode="json", exclude={"of"})
            ledger.add("rate", case=case.key, **measured, profile=profile, others=since.share(), **about)
            since, before = mark, after
    return failed


def rate_of(reports: Sequence[tuple[float, Metrics]]) -> float:
    """Examples a second: the line through all reports, since workers that exchange seldom come in bursts.

    Raises:
        MeasurementError: Nothing was trained.
    """
    times, examples = zip(*((at, metrics.examples) for at, metrics in reports), strict=True)
    if examples[0] == examples[-1]:
        raise MeasurementError(f"nothing was trained in {times[-1] - times[0]:.1f} s")
    return statistics.linear_regression(times, examples).slope


def _measured(case: Case, run_s: float) -> dict[str, Any]:
    """Examples a second, the share of the time in which workers waited for communication, and what a worker spent on
    the parts of a minibatch, in seconds."""
    with endless.started(case.spec, "predicted") as (_, folder):
        reports = list(endless.measured(follow(folder, endless.RUN_S), replace(workload(), seconds=run_s)))
    minibatches = (reports[-1][1].examples - reports[0][1].examples) / workload().minibatch
    names = ("compute_s", "wait_communication_s", "wait_data_s", "wait_fetch_s", "wait_push_s")
    parts = {name: sum(getattr(metrics, name) for _, metrics in reports[1:]) / minibatches for name in names}
    return {"examples_per_s": rate_of(reports), "waiting": endless.analyse(reports).waiting, "parts": parts}


@contextmanager
def _ray(place: Place) -> Iterator[None]:
    if place.gb_per_s is not None:
        with namespaces.nodes(1000 * GBIT * place.gb_per_s, WORKERS):
            yield
        return
    with trainers.embedded(num_cpus=WORKERS + 1):
        time.sleep(SETTLE_S)
        yield
