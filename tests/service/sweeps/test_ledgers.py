"""The ledgers of sweeps in the database: what is kept, and what comes back where a folder is gone."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.measurement.recorded_sweep import record
from service import Store, TrialStore, evidence, parse_sweep
from service.database.job_changes import JobChanges
from service.status import Status
from service.storage.mirror import Mirror
from service.storage.object_storage import Storage
from service.sweeps import control
from service.sweeps.ledgers.keeper import LedgerKeeper
from service.sweeps.trial_store import Ending, TrialState
from service.sweeps.views import view
from tests.api.conftest import Service, serve  # noqa: F401
from tests.service.conftest import empty_url, postgres_folder, postgres_tables, url  # noqa: F401
from trainers import State

JOB = {"data": "digits", "model": "mlp", "workers": 1, "epochs": 2}
SPEC = parse_sweep({"job": JOB, "axes": {"optimizer.lr": [0.1, 0.2], "seed": [0, 1]}})


def test_a_ledger_is_kept_and_comes_back(url: str, tmp_path: Path) -> None:  # noqa: F811
    store = record(tmp_path / "sweeps" / "sweep-1", steps_an_epoch=1, spec=SPEC)
    control.edit(store, JobChanges(notes="kept", labels={"team": "blue"}))
    before = view(store)
    jobs = Store.open(url)
    try:
        LedgerKeeper(jobs, None).save(store)
        shutil.rmtree(store.folder)
        keeper = LedgerKeeper(jobs, None)
        keeper.restore(tmp_path / "sweeps")
        assert view(TrialStore(store.folder)) == before
        errors = {one.id: one.error for one in evidence(store).trials}
        assert errors == {trial.id: trial.error for trial in before.results}  # whose logs are gone
        keeper.forget(store)
        shutil.rmtree(store.folder)
        keeper.restore(tmp_path / "sweeps")
        assert not store.exists
    finally:
        jobs.close()


def test_only_what_has_changed_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = control.begin(tmp_path / "sweep-1", "sweep-1", SPEC)
    jobs = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    keeper, written = LedgerKeeper(jobs, None), list[Any]()
    try:
        real = keeper.saved.save
        monkeypatch.setattr(keeper.saved, "save", lambda *given: (written.append([*given[2]]), real(*given))[1])
        keeper.save(store)
        keeper.save(store)
        (first, *_) = store.trials()
        store.begin(first.id)
        store.finish(first.id, Ending(state=TrialState.STOPPED, reason="Asha", message="stopped: of no use"), 0.5)
        keeper.save(store)
        assert written == [[1, 2, 3, 4], [1]]
        values, trials = keeper.saved.get("sweep-1")
        assert (values["state"], trials[0]["message"], trials[0]["error"]) == ("QUEUED", "stopped: of no use", 0.5)
    finally:
        jobs.close()


def copied(mirror: Mirror) -> None:
    """Until everything is in storage."""
    deadline = time.monotonic() + 60
    while mirror.num_due or mirror.working:
        assert time.monotonic() < deadline, mirror.trouble
        time.sleep(0.01)


def test_another_machine_goes_on_with_a_sweep_of_the_database_and_the_storage(tmp_path: Path) -> None:
    store = record(tmp_path / "first" / "sweep-1", steps_an_epoch=1, spec=SPEC)
    store.move((State.SUCCEEDED,), Status(State.PAUSED, "Paused", ""))
    (trial, *_) = store.trials()
    jobs = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
    jobs.add_trials("sweep-1", {row.id: (row.job_spec, store.run_dir(row.id)) for row in store.trials()}, "local")
    mirrors = [Mirror(Storage.open(f"file://{tmp_path}/copies"), tmp_path / name, look_s=0.02) for name in "ab"]
    try:
        for mirror in mirrors:
            mirror.start(dict)
        LedgerKeeper(jobs, mirrors[0]).save(store)
        for row in store.trials():
            mirrors[0].look(row.id, store.run_dir(row.id))
        mirrors[0].look("sweep-1", store.folder)
        copied(mirrors[0])
        before, log = evidence(store), (store.run_dir(trial.id) / "events.jsonl").read_bytes()
        shutil.rmtree(tmp_path / "first")
        LedgerKeeper(jobs, mirrors[1]).restore(tmp_path / "second")
        found = TrialStore(tmp_path / "second" / "sweep-1")
        assert (found.state, found.driver, found.spec) == (State.PAUSED, 0, SPEC)
        assert evidence(found) == before  # with its curves
        assert (found.run_dir(trial.id) / "events.jsonl").read_bytes() == log
        assert jobs.get(trial.id).run_dir == found.run_dir(trial.id)
        control.resume(found)
        assert found.state is State.QUEUED
    finally:
        for mirror in mirrors:
            mirror.close()
        jobs.close()


def test_a_service_whose_folder_of_sweeps_is_gone_has_them_all_the_same(
    serve: Callable[..., Service],  # noqa: F811
    tmp_path: Path,
) -> None:
    store = record(tmp_path / "sweeps" / "sweep-1", steps_an_epoch=1, spec=SPEC)  # of an earlier Millrace
    service = serve()
    assert [one.id for one in service.client.sweeps()] == ["sweep-1"]
    service.client.edit_sweep("sweep-1", name="renamed")
    service.stop()
    shutil.rmtree(store.folder)
    service = serve()
    (found,) = service.client.sweeps((State.SUCCEEDED,))
    assert (found.name, found.trials["succeeded"]) == ("renamed", 4)
    service.client.delete_sweep("sweep-1")
    service.stop()
    assert list(serve().client.sweeps()) == []
