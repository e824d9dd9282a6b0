"""Jobs between their last event and its place in the database."""

import asyncio
import threading

import pytest

from service.errors import JobNotFound
from service.spec import parse_spec
from tests.service.conftest import Managed, reached, started
from tests.service.fakes import FakeRuns
from trainers.events import State


def test_a_job_that_has_just_ended_is_deleted_when_its_end_is_recorded(
    managed: Managed, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is shown comes from its log, a moment before the store knows."""

    async def scenario() -> None:
        async with managed() as manager:
            job, _ = await manager.submit(parse_spec({"epochs": 4}))
            run, gate, finish = await started(runs, job.id), threading.Event(), manager.store.finish
            monkeypatch.setattr(manager.store, "finish", lambda *end: (gate.wait(60), finish(*end)))
            run.succeed()
            await reached(manager, job.id, State.SUCCEEDED)
            deleting = asyncio.create_task(manager.delete(job.id))
            await asyncio.sleep(0.05)  # it finds that the job is still active
            gate.set()
            await deleting
            with pytest.raises(JobNotFound):
                await manager.show(job.id)

    asyncio.run(scenario())
