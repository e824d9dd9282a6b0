"""A fork through Ray on another machine: its beginning comes from storage, and the same bits come out."""

import asyncio
import importlib.util
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import trainers
from service.database.job_store import Store
from service.jobs.assembly import build_manager
from service.jobs.manager import JobManager, ManagerConfig
from service.spec import parse_spec
from service.storage.mirror import Mirror
from service.storage.object_storage import Storage
from tests.service.conftest import all_events, eventually
from trainers import ClusterInfo, State

pytestmark = pytest.mark.long

JOB = {
    "name": "copied",
    "model": "mlp",
    "epochs": 3,
    "batch": 8,
    "workers": 2,
    "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_epochs": 1, "keep_last": 3},
}
HAS_S3 = all(importlib.util.find_spec(name) for name in ("s3fs", "moto", "flask_cors"))


def test_a_fork_on_a_fresh_machine_ends_with_the_same_bits(
    tmp_path: Path, cluster: ClusterInfo, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("s3") if HAS_S3 else f"file://{tmp_path}/copies"

    @asynccontextmanager
    async def serving(machine: str) -> AsyncIterator[JobManager]:
        store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
        mirror = Mirror(Storage.open(url), tmp_path / machine, look_s=0.2)
        manager = build_manager(store, trainers, ManagerConfig(tmp_path / machine, tmp_path), mirror)
        await manager.start()
        try:
            yield manager
        finally:
            await manager.stop()
            store.close()

    async def ended(manager: JobManager, job_id: str) -> None:
        async with asyncio.timeout(250):
            events = [event async for batch in await manager.events(job_id) for event in batch]
            assert events[-1].data["state"] == State.SUCCEEDED, events[-1].data
            await eventually(lambda: is_copied(manager, job_id))

    async def is_copied(manager: JobManager, job_id: str) -> bool:
        return job_id not in manager.active and (await manager.show(job_id)).storage.startswith("copied")

    async def scenario() -> None:
        async with serving("first") as manager:
            job, _ = await manager.submit(parse_spec(JOB))
            await ended(manager, job.id)
            told = await all_events(manager, job.id)
        expected = (tmp_path / "first" / job.id / "model.safetensors").read_bytes()
        shutil.rmtree(tmp_path / "first")
        async with serving("second") as manager:
            begin = (await manager.checkpoints(job.id))[0]
            assert begin.epoch == 1
            forked, _ = await manager.fork(job.id, {}, begin.step)
            await ended(manager, forked.id)
            assert (tmp_path / "second" / forked.id / "model.safetensors").read_bytes() == expected
            assert (tmp_path / "second" / job.id / "model.safetensors").read_bytes() == expected
            assert await all_events(manager, job.id) == told

    asyncio.run(scenario())
