"""Small sweeps on the session's Ray."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ray

import trainers
from service import ManagerConfig, Store, SweepManager, SweepSpec, build_manager, parse_sweep
from service.jobs.queueing.claims import Quotas
from service.sweeps.driver import NAMESPACE
from tests.runtime.runs import left_behind

JOB = {
    "data": {"name": "digits", "limit": 203},
    "model": "mlp",
    "workers": 1,
    "batch": {"per_worker": 8, "base": 8},
    "epochs": 2,
    "optimizer": {"name": "momentum", "lr": 0.02},
}
WITHIN_S = 250.0


def spec(axes: dict[str, list[Any]], job: dict[str, Any] | None = None, **fields: Any) -> SweepSpec:
    """A sweep of two trials at a time."""
    return parse_sweep({"job": JOB | (job or {}), "axes": axes, "limits": {"concurrent": 2}} | fields)


@asynccontextmanager
async def managed(folder: Path, trainable: Any = None, quotas: Quotas | None = None) -> AsyncIterator[SweepManager]:
    """The managers of a service; called again, ones that find what the first left."""
    store = Store.open(f"sqlite:///{folder / 'jobs.db'}")
    config = ManagerConfig(folder / "runs", folder, poll_s=0.05, quotas=quotas or Quotas())
    jobs = build_manager(store, trainers, config)
    sweeps = SweepManager(jobs, folder / "sweeps", folder, poll_s=0.05, trainable=trainable)
    await jobs.start()
    await sweeps.start()
    try:
        yield sweeps
    finally:
        await sweeps.stop()
        await jobs.stop()
        store.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something has come about."""
    async with asyncio.timeout(WITHIN_S):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def kill_driver(sweep_id: str) -> None:
    """As an operating system kills: without a word."""
    driver = ray.get_actor(f"{sweep_id}/driver", NAMESPACE)
    os.kill(ray.get(driver.ping.remote()), signal.SIGKILL)


def nothing_left(sweep_id: str, trials: list[str]) -> None:
    """No actor, placement group or mapped file of a sweep that has ended."""
    deadline = time.monotonic() + 60
    while True:
        left = [one for name in (sweep_id, *trials) for one in left_behind(name)]
        left += [g["name"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
