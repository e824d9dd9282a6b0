"""What the tests of every tracker begin with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.spec import JobSpec
from service.tracking.mirror import TrackedJob
from tests.service.fakes import FakeRun
from trainers.events import State


@pytest.fixture
def job(tmp_path: Path) -> Iterator[tuple[TrackedJob, FakeRun]]:
    """A job and its run, which has told two epochs."""
    spec = JobSpec(epochs=3, labels={"team": "blue"})
    run = FakeRun("job1", spec.train, tmp_path / "job1")
    run.state(State.RUNNING)
    for epoch in (1.0, 2.0):
        run.step(epoch)
    fields = spec.model_dump(mode="json")
    yield TrackedJob(id="job1", name="mine", labels=spec.labels, run_dir=run.run_dir, spec=fields), run
    if run.alive:
        run.die()
