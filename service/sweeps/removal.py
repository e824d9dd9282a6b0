"""Removes sweeps that have ended: when somebody asks for it, and when their time is over."""

import asyncio
import shutil

from service.errors import StateConflict
from service.jobs.manager import JobManager
from service.sweeps.ledgers.keeper import LedgerKeeper
from service.sweeps.trial_store import TrialStore


def expires(store: TrialStore, keep_s: float | None) -> float | None:
    """When an ended sweep is to be removed, in seconds since 1970; None: never. As of jobs, `ttl_s` goes before
    `keep_s`, how long the service keeps what has ended. What is archived is kept."""
    ttl_s = store.get("spec")["job"].get("ttl_s")
    kept_s = keep_s if ttl_s is None else float(ttl_s)
    if kept_s is None or not store.state.is_terminal or store.get("archived", False):
        return None
    ended = max((row.finished or 0.0 for row in store.trials()), default=0.0)
    return max(float(store.get("created")), ended) + kept_s


async def remove(jobs: JobManager, ledgers: LedgerKeeper, store: TrialStore) -> None:
    """Remove a sweep with its trials, their jobs and files. Raises StateConflict if it has not ended.

    The jobs go first: if this is cut short, the sweep is still there, and can be removed again.
    """
    state = await asyncio.to_thread(lambda: store.state)
    if not state.is_terminal:
        raise StateConflict(f"the sweep is {state}; only one that has ended can be deleted: cancel it first")
    await asyncio.to_thread(jobs.removal.collect)
    trials = [one.id for one in await asyncio.to_thread(store.progress)]
    await asyncio.to_thread(jobs.store.remove_trials, store.folder.name)
    for trial in trials:
        jobs.trials.forget(trial)
        jobs.series.forget(store.run_dir(trial))
        if jobs.mirror is not None:
            await asyncio.to_thread(jobs.mirror.forget, trial)
    await asyncio.to_thread(ledgers.forget, store)  # before its folder, or it would be brought back
    await asyncio.to_thread(shutil.rmtree, store.folder)
