"""`millrace serve` killed outright in the middle of a sweep whose trials train, alone and with its whole Ray."""

import json
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from api import Client
from service import SweepView, TrialStore
from service.sweeps.trial_curve import read_curve
from tests.api.conftest import eventually
from tests.api.http.test_serve import MILLRACE, Serving, left, using
from tests.faults.test_workers import CODE, allow, hurry
from tests.runtime.test_runs import assert_same_bits, parameters
from trainers import EventLogReader
from trainers.runtime.node_folder import PREFIX, SHARED_MEMORY

EPOCHS, EXAMPLES, BATCH = 16, 1437, 8
TRIALS = 4
POLL_S = 0.1


def sweep(folder: Path) -> tuple[dict[str, Any], Path]:
    """Of two synchronous trials and two asynchronous ones; and the plan of one of each, which is held in the middle
    until it may hurry."""
    models = [{"name": "faulty:struck", "kwargs": {"plan": str(folder / name)}} for name in ("free", "held")]
    for name in ("free", "held"):
        (folder / name).mkdir()
    allow(folder / "held", 0, EPOCHS * EXAMPLES // BATCH // 4)  # of two workers' minibatches
    job = {"data": "digits", "workers": 2, "ps": 2, "batch": {"per_worker": BATCH}, "epochs": EPOCHS, "code": CODE}
    axes = {"algorithm": ["sync", "downpour"], "model": models}
    return {"job": job, "axes": axes, "limits": {"concurrent": 2}}, folder / "held"


def until_in_the_middle(store: TrialStore, num_ended: int) -> None:
    """Wait until so many trials have ended, and another has made a checkpoint and has epochs left."""
    while True:
        rows = store.trials()
        curves = [read_curve(store.run_dir(row.id)) for row in rows if row.state == "RUNNING"]
        is_training = any(2 <= len(curve.points) < EPOCHS - 3 for curve in curves)
        if is_training and sum(row.state.has_ended for row in rows) >= num_ended:
            return
        time.sleep(POLL_S)


def told(store: TrialStore, trial: str, event_type: str) -> list[dict[str, Any]]:
    return [event.data for event in EventLogReader(store.run_dir(trial)).read() if event.type == event_type]


def assert_counted_once(store: TrialStore) -> None:
    """Each trial has one end and one result, and trained every example once in each epoch that counts."""
    for row in store.trials():
        states = Counter(state["state"] for state in told(store, row.id, "state"))
        assert states["SUCCEEDED"] == 1, (row.settings, states)
        assert len(told(store, row.id, "result")) == 1, row.settings
        audits = {audit["epoch"]: audit for audit in told(store, row.id, "epoch_audit")}
        assert sorted(audits) == list(range(1, EPOCHS + 1)), row.settings
        for audit in audits.values():
            assert (audit["trained"], audit["lost"], audit["duplicated"]) == (EXAMPLES, 0, 0), (row.settings, audit)


def assert_same_results(one: TrialStore, other: TrialStore) -> None:
    """For synchronous trials, whose results depend on nothing but the spec."""
    for mine, its in zip(one.trials(), other.trials(), strict=True):
        assert mine.settings == its.settings
        if mine.settings["algorithm"] == "sync":
            assert_same_bits(parameters(one.run_dir(mine.id)), parameters(other.run_dir(its.id)))
            accuracies = [read_curve(store.run_dir(row.id)).costs for store, row in ((one, mine), (other, its))]
            assert accuracies[0] == accuracies[1], mine.settings
            assert mine.error == its.error


def ray_folder(state_dir: Path) -> Path:
    """The temporary folder of the service's Ray, which every process of it names in its command line."""
    return Path(json.loads((state_dir / "cluster.json").read_text())["temp_dir"])


def in_memory(views: tuple[SweepView, ...]) -> list[Path]:
    """What sweeps and their trials have in shared memory."""
    ids = [name for view in views for name in (view.id, *(trial.id for trial in view.results))]
    return [path for name in ids for path in SHARED_MEMORY.glob(f"{PREFIX}{name}-*")]


def kill(serving: Serving, state_dir: Path, with_ray: bool) -> None:
    """As an operating system kills: without a word."""
    serving.process.kill()
    for pid in using(str(ray_folder(state_dir))) if with_ray else ():
        with suppress(ProcessLookupError):  # it has died with another of them
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_sweep_whose_service_is_killed_twice_ends_as_one_that_nobody_disturbed(tmp_path: Path) -> None:
    state_dir, (wanted, held) = tmp_path / "state", sweep(tmp_path)
    try:
        with (first := Serving(state_dir, num_cpus=4)) as url, Client(url) as client:
            killed = client.sweep(wanted, "killed").id
            store = TrialStore(Path(client.get_sweep(killed).folder))
            until_in_the_middle(store, 0)
            kill(first, state_dir, with_ray=False)
        with (second := Serving(state_dir, num_cpus=4)) as url, Client(url) as client:
            assert client.sweep(wanted, "killed").id == killed, "submitted again with its key, it is the same sweep"
            until_in_the_middle(store, 2)
            done = {row.id for row in store.trials() if row.state.has_ended}
            kill(second, state_dir, with_ray=True)
            hurry(held)
        with Serving(state_dir, num_cpus=4) as url, Client(url) as client:
            events = list(client.sweep_events(killed))
            again = client.sweep(wanted, "undisturbed").id
            assert list(client.sweep_events(again))[-1].is_terminal
            shown, undisturbed = client.get_sweep(killed), client.get_sweep(again)
            for view in (shown, undisturbed):
                assert view.trials["succeeded"] == view.trials["total"] == len(view.results) == TRIALS, view.message
                jobs = Counter(job.id for job in client.list(labels=(f"sweep={view.id}",)))
                assert jobs == Counter(trial.id for trial in view.results)
            assert {trial.starts for trial in shown.results if trial.id in done} == {1}, (
                "what has ended is not run again"
            )
            assert max(trial.starts for trial in shown.results) == 2, "who was interrupted went on"
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            address = (ray_folder(state_dir) / "ray_current_cluster").read_text().strip()
            for view in (shown, undisturbed):
                eventually(lambda view=view: not left(address, view.id), 300.0)  # type: ignore[misc]
            assert in_memory((shown, undisturbed)) == []
        other = TrialStore(Path(undisturbed.folder))
        for each in (store, other):
            assert_counted_once(each)
        assert_same_results(store, other)
    finally:
        folder = ray_folder(state_dir)
        stop = [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=200)
    assert using(str(folder)) == []
    assert not folder.exists()
