"""Measures all jobs of a place, on one Ray that is started for them."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import trainers
from benchmarks.links import endless, namespaces
from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import SETTLE_S, follow
from benchmarks.measurement.processes import MeasurementError
from benchmarks.predictions.cases import Case, Place, workload
from benchmarks.predictions.ledger import Ledger
from trainers.cost.profiles.step_timing import profile_step
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


def measure_profile(ledger: Ledger) -> None:
    """Time one worker's step; its algorithm does not matter. Called in a process of its own."""
    profile = profile_step(Case("sync", "auto", Place()).spec)
    ledger.add("profile", profile=profile.model_dump(mode="json"), machine=machine.describe(), load=machine.load())


def measure_place(place: Place, cases: Sequence[Case], ledger: Ledger, times: Times) -> int:
    """Measure its links, where that is not done, and these jobs one after the other, each in the ledger at once. Called
    in a process of its own, which stays on the first node.

    Returns:
        How many of the jobs failed.
    """
    failed = 0
    with _ray(place):
        if ledger.links(place) is None:
            links = trainers.measure_links(AT_ONCE, times.links_s)
            ledger.add("links", place=place.title, links=links.model_dump(mode="json"), load=machine.load())
        for case in cases:
            if time.time() > times.until:
                break
            try:
                rate, waiting = _rate(case, times.run_s)
            except MeasurementError as error:
                failed += 1
                print(f"{case.key}: {error}", flush=True)
                ledger.add("failed", case=case.key, why=str(error))
                continue
            print(f"{case.key}: {rate:,.0f} examples/s", flush=True)
            about = {"commit": machine.commit(), "load": machine.load()}
            ledger.add("rate", case=case.key, examples_per_s=rate, waiting=waiting, **about)
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


def _rate(case: Case, run_s: float) -> tuple[float, float]:
    """Examples a second, and the share of the time in which workers waited for communication."""
    with endless.started(case.spec, "predicted") as (_, folder):
        reports = list(endless.measured(follow(folder, endless.RUN_S), replace(workload(), seconds=run_s)))
    return rate_of(reports), endless.analyse(reports).waiting


@contextmanager
def _ray(place: Place) -> Iterator[None]:
    if place.gb_per_s is not None:
        with namespaces.nodes(1000 * GBIT * place.gb_per_s, WORKERS):
            yield
        return
    with trainers.embedded(num_cpus=WORKERS + 1):
        time.sleep(SETTLE_S)
        yield
