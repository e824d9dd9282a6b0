"""A trace on request, without Ray: what becomes of it, whatever happens to the run, and what is kept."""

import asyncio
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.control.fake_actors import died
from tests.runtime.control.fakes import FakeRun, play
from trainers.errors import TraceRefused
from trainers.events import State
from trainers.runtime.control.onlookers.tracing import KEPT
from trainers.runtime.control.run_log import LogSummary
from trainers.training.messages import Traced

WHOLE = Traced(10, True, b"trace")


async def over(run: FakeRun) -> dict[str, Any]:
    """What becomes of the trace under way."""
    while run.parts.tracing.recording is not None:
        await run.settle()
        await asyncio.sleep(0.001)  # while it is written
    return run.log.of("trace")[-1]


def told(**data: Any) -> dict[str, Any]:
    return {"worker": 1, "asked": 10, **data}


def test_what_is_recorded_is_kept_and_told(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        actor = run.actor(1)
        for _ in range(KEPT + 2):
            actor.answers["traced"] = deque([Traced(0, False), Traced(4, False), Traced(4, False), WHOLE])
            before = len(run.log.written)
            assert run.parts.tracing.begin(10, 1) == before + 1
            last = await over(run)
        assert actor.called("begin_trace")[-1] == (10,)
        name = f"{KEPT + 2:04d}-worker-1-10.json.gz"
        assert [data for _, data in run.log.written[before:]] == [
            told(steps=0), told(steps=4), told(steps=10, file=name, bytes=5),
        ]  # fmt: skip
        kept = sorted(path.name for path in (tmp_path / "traces").iterdir())
        assert kept == [f"{number:04d}-worker-1-10.json.gz" for number in range(3, KEPT + 3)]
        assert (tmp_path / "traces" / last["file"]).read_bytes() == b"trace"
        with pytest.raises(TraceRefused, match="no worker 7; those that train now: 0, 1"):
            run.parts.tracing.begin(10, 7)
        with pytest.raises(TraceRefused, match="1 to 100 steps, not 101"):
            run.parts.tracing.begin(101, None)

    play(tmp_path, scenario)


ENDINGS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "dies": ([Traced(3, False), died()], {"steps": 0, "why": "worker 1 died, or left the run"}),
    "resize": (
        [Traced(3, True, b"trace")],
        {"steps": 3, "file": "0001-worker-1-3.json.gz", "bytes": 5, "why": "the workers changed"},
    ),
    "peer": (
        [Traced(2, True, b"trace", "worker 0 is gone")],
        {"steps": 2, "file": "0001-worker-1-2.json.gz", "bytes": 5, "why": "worker 0 is gone"},
    ),
    "no step": ([Traced(0, True)], {"steps": 0, "why": "the workers changed"}),
    "its profiler": ([Traced(0, True, why="it does not start")], {"steps": 0, "why": "it does not start"}),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_ends_early_says_why(ending: str, tmp_path: Path) -> None:
    answers, wanted = ENDINGS[ending]

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.actor(1).answers["traced"] = deque(answers)
        run.parts.tracing.begin(10, 1)
        with pytest.raises(TraceRefused, match="worker 1 records 10 steps already"):
            run.parts.tracing.begin(10, 0)
        assert await over(run) == told(**wanted)

    play(tmp_path, scenario)
    assert not list(tmp_path.glob("traces/.*")), "nothing is left behind"


@pytest.mark.parametrize(("stops", "why"), [(True, "the run was told to stop"), (False, "all was trained")])
def test_the_end_of_a_run_ends_its_trace(stops: bool, why: str, tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        actor = run.actor(0)
        actor.answers["traced"] = lambda: Traced(0, bool(actor.called("end_trace")))
        run.parts.tracing.begin(10, None)
        await run.settle()
        if stops:
            run.controller.stop(State.PAUSED)
            await run.settle()
        await run.parts.tracing.over(why)
        assert run.log.of("trace")[-1] == {"worker": 0, "asked": 10, "steps": 0, "why": why}
        assert len(actor.called("end_trace")) == 1
        with pytest.raises(TraceRefused, match="while it is RUNNING"):
            run.parts.tracing.begin(10, None)

    play(tmp_path, scenario)


def test_the_trace_of_a_coordinator_that_died_is_over(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        run.controller.before = LogSummary(trace=told(steps=4))
        run.controller.begin()
        assert run.log.of("trace") == [told(steps=0, why="the run's coordinator died")]

    play(tmp_path, scenario, before=LogSummary())
