"""Pause, resume and fork through Ray: whatever happened on the way, the same bits come out."""

import asyncio
from pathlib import Path

import pytest

import trainers
from service.database.job_store import Store
from service.jobs.assembly import build_manager
from service.jobs.manager import JobManager, ManagerConfig
from service.spec import parse_spec
from tests.faults.test_workers import CODE, allow, hurry
from tests.runtime.runs import changes
from tests.service.conftest import all_events
from trainers import ClusterInfo, State

pytestmark = pytest.mark.long

HELD_AT = 200
"""The minibatch of a worker at which the job is held until it was told to pause: in its third epoch."""
JOB = {
    "name": "whole",
    "code": CODE,
    "epochs": 12,
    "batch": 8,
    "report_every_s": 0.1,
    "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_epochs": 1, "keep_last": 50},
}


@pytest.mark.parametrize("wire", ["float32", "bfloat16"])
def test_a_paused_job_and_a_fork_end_with_the_same_bits(tmp_path: Path, cluster: ClusterInfo, wire: str) -> None:
    async def scenario() -> None:
        store = Store.open(f"sqlite:///{tmp_path / 'jobs.db'}")
        manager = build_manager(store, trainers, ManagerConfig(tmp_path / "runs", tmp_path))
        await manager.start()
        try:
            plan = tmp_path / "plan"
            plan.mkdir()
            allow(plan, 0, HELD_AT)
            model = {"name": "faulty:struck", "kwargs": {"plan": str(plan)}}
            job, _ = await manager.submit(parse_spec(JOB | {"model": model, "wire": wire}))
            await until(manager, job.id, "checkpoint")
            await manager.pause(job.id)
            hurry(plan)
            await until(manager, job.id, "state", State.PAUSED)
            paused = await manager.show(job.id)
            assert (paused.state, paused.workers) == (State.PAUSED, 0)
            first = (await manager.checkpoints(job.id))[0]
            forked, _ = await manager.fork(job.id, {}, first.step)  # from the end of an epoch, in one go
            await manager.scale(job.id, 1)
            await manager.resume(job.id)  # from wherever the pause came, with another number of workers
            for job_id in (job.id, forked.id):
                async with asyncio.timeout(250):
                    events = [event async for batch in await manager.events(job_id) for event in batch]
                assert [event.seq for event in events] == list(range(1, len(events) + 1))
                assert events[-1].data["state"] == "SUCCEEDED", events[-1].data
            states = changes(e.data["state"] for e in await all_events(manager, job.id) if e.type == "state")
            assert states[states.index("PAUSED") :] == ["PAUSED", "QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
            (first_run, second_run) = (
                len(e.data["workers"]) for e in await all_events(manager, job.id) if e.type == "actors"
            )
            assert (first_run, second_run) == (2, 1)
            models = [(tmp_path / "runs" / one / "model.safetensors").read_bytes() for one in (job.id, forked.id)]
            assert models[0] == models[1]
        finally:
            await manager.stop()
            store.close()

    asyncio.run(scenario())


async def until(manager: JobManager, job_id: str, kind: str, state: State | None = None) -> None:
    """Wait until the log has an event of this kind."""
    async with asyncio.timeout(250):
        async for batch in await manager.events(job_id):
            if any(e.type == kind and (state is None or e.data["state"] == state) for e in batch):
                return
