"""Measures all jobs of a place, on one Ray that is started for them."""

import math
import os
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import trainers
from benchmarks.links import endless, namespaces
from benchmarks.measurement import machine
from benchmarks.measurement.millrace_runs import SETTLE_S, follow, worker_pids
from benchmarks.measurement.others import Others
from benchmarks.measurement.processes import MeasurementError
from benchmarks.predictions.cases import Case, Place, workload
from benchmarks.predictions.ledger import Ledger
from benchmarks.predictions.yardstick import Taken, Yardstick, yardstick
from trainers.events import Event, Metrics
from trainers.runtime.probe.link_end import busy_s

WORKERS = 2
AT_ONCE = (1, 2)
GBIT = 8.0
PARTS = 3
"""Of a run, between which the steps are timed while it stands still."""
AFRESH_S, AFRESH = 0.7, 2 * WORKERS
"""After that nothing is measured for so long, and so many minibatches: the first step takes longer."""
LEAST_MINIBATCHES = 20
Reports = Sequence[tuple[float, Metrics]]
AT_REST, SETTLED_S = 0.1, 30.0
"""Of the cores, and how long that is waited for."""


@dataclass(frozen=True)
class Times:
    """How long is measured."""

    part_s: float = 4.0
    """Each part of a run."""
    links_s: float = 20.0
    """For all transfers of a place."""
    until: float = math.inf
    """By the clock of `time.time`; nothing is begun later."""


def measure_place(place: Place, cases: Sequence[Case], ledger: Ledger, times: Times) -> int:
    """Measure its links, where that is not done, and these jobs one after the other, each in the ledger at once, with
    the profile of steps from around it and from its pauses. Called in a process of its own, which stays on the first
    node.

    Returns:
        How many of the jobs failed.
    """
    failed = 0
    with _ray(place), yardstick(Case("sync", "auto", place).spec, WORKERS) as steps:
        if ledger.links(place) is None:
            links = trainers.measure_links(AT_ONCE, times.links_s)
            ledger.add("links", place=place.title, links=links.model_dump(mode="json"), load=machine.load())
        _settle()
        since, before = Others(), steps.measure()
        if not ledger.records("machine"):
            ledger.add("machine", machine=machine.describe())
        for case in cases:
            if time.time() > times.until:
                break
            try:
                measured, between = _measured(case, steps, times.part_s)
            except MeasurementError as error:
                failed += 1
                print(f"{case.key}: {error}", flush=True)
                ledger.add("failed", case=case.key, why=str(error))
                continue
            mark, after = Others(), steps.measure()
            print(f"{case.key}: {measured['examples_per_s']:,.0f} examples/s", flush=True)
            about = {"commit": machine.commit(), "load": machine.load()}
            profile = steps.profile(before, *between, after).model_dump(mode="json", exclude={"of"})
            ledger.add("rate", case=case.key, **measured, profile=profile, others=since.share(), **about)
            since, before = mark, after
    return failed


def _measured(case: Case, steps: Yardstick, part_s: float) -> tuple[dict[str, Any], list[Taken]]:
    """Examples a second, the share of the time in which workers waited for communication, and what a worker spent on
    the parts of a minibatch, in seconds; and the steps that were timed while the run stood still."""
    taken = list[Taken]()
    with endless.started(case.spec, "predicted") as (_, folder):
        events, pids = follow(folder, endless.RUN_S), list[int]()
        first = _reports(events, pids, 0.0)
        while (begun := next(first))[1].step < workload().warmup_steps:
            pass
        parts = [_part(events, pids, begun[0], part_s)]
        while len(parts) < PARTS:
            with _standing(pids):
                taken.append(steps.measure())
            parts.append(_part(events, pids, time.time() + AFRESH_S, part_s))
    names = ("compute_s", "wait_communication_s", "wait_data_s", "wait_fetch_s", "wait_push_s")
    minibatches = sum(part[-1][1].examples - part[0][1].examples for part in parts) / workload().minibatch
    spent = {n: sum(getattr(m, n) for part in parts for _, m in part[1:]) / minibatches for n in names}
    waiting = statistics.fmean(endless.analyse(part).waiting for part in parts)
    rate = endless.rate_of([report for part in parts for report in part])
    return {"examples_per_s": rate, "waiting": waiting, "parts": spent}, taken


def _part(events: Iterator[Event], pids: list[int], since: float, part_s: float) -> Reports:
    """All reports from then on, for so long, and of so many minibatches at least; without the first of each worker,
    which has the time in which it stood still."""
    found, seen = list[tuple[float, Metrics]](), None
    for at, metrics in _reports(events, pids, since):
        seen = metrics.examples if seen is None else seen
        trained = (metrics.examples - seen) / workload().minibatch
        if trained < AFRESH:
            continue
        found.append((at, metrics))
        if at >= found[0][0] + part_s and trained >= AFRESH + LEAST_MINIBATCHES:
            break
    return found


def _reports(events: Iterator[Event], pids: list[int], since: float) -> Iterator[tuple[float, Metrics]]:
    """From then on; the workers' processes, where the log tells them, are put into `pids`."""
    for event in events:
        if event.is_terminal:
            raise MeasurementError(f"the job ended as {event.data}")
        if event.type == "fault":  # as where a slow machine rested so long that the run took its workers to hang
            raise MeasurementError(f"{event.data['actor']} {event.data['why']}")
        if event.type == "actors":
            pids[:] = worker_pids(event)
        if event.type == "step" and event.time >= since:
            yield event.time, Metrics.model_validate(event.data)


@contextmanager
def _standing(pids: Sequence[int]) -> Iterator[None]:
    """The workers are stopped, for less time than after which a run takes them to hang."""
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # the log tells of its end
            os.kill(pid, number)


def _settle() -> None:
    """Until the cores rest: for some seconds a new Ray starts processes of its own, and the yardstick others."""
    cores, deadline = len(os.sched_getaffinity(0)), time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        before_s = busy_s()
        time.sleep(1.0)
        if busy_s() - before_s < AT_REST * cores:
            return


@contextmanager
def _ray(place: Place) -> Iterator[None]:
    if place.gb_per_s is not None:
        with namespaces.nodes(1000 * GBIT * place.gb_per_s, WORKERS):
            yield
        return
    with trainers.embedded(num_cpus=WORKERS + 1):
        time.sleep(SETTLE_S)
        yield
