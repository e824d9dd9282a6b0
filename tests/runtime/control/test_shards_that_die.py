"""What a run does when shards die: replaced, back to the last checkpoint, or given up. Without Ray."""

from pathlib import Path

import pytest

from tests.runtime.control.fakes import SYNC_THROUGH_SHARDS, FakeRun, ended, play, small, train_everything
from trainers.errors import ShardLost
from trainers.events import State
from trainers.runtime.control.controller import RunPhase
from trainers.runtime.control.run_events import ShardDied
from trainers.runtime.control.run_log import LogSummary


@pytest.mark.parametrize("why", ["died", "did not answer for 6.0 s: its process is stopped"])
def test_another_process_takes_the_place_of_a_shard_that_died(tmp_path: Path, why: str) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.shards.version = 7
        run.pool.faults = {run.pool.shards[0]: why} if why != "died" else {}
        await run.happens(ShardDied(0))
        assert run.log.of("fault") == [{"actor": "job/shard/0", "why": why, "examples": 0}]
        assert run.shards.replaced == [0]
        assert run.shards.served == [0, 0]
        assert run.log.of("log")[-1] == {"level": "info", "message": "shard 0 goes on at version 7"}

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))


@pytest.mark.parametrize(("went_back", "state"), [(0, "RECOVERING"), (1, "RECOVERING"), (2, "FAILED")])
def test_a_shard_lost_with_all_it_had_takes_the_run_back_twice(tmp_path: Path, went_back: int, state: str) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.log.before = LogSummary(went_back=went_back)
        run.shards.failure = ShardLost("shard 0 has left nothing")
        await run.happens(ShardDied(0))
        assert ended(run)[:2] == (state, "ShardLost")
        assert ended(run)[2].endswith("; goes back to the last checkpoint") == (state == "RECOVERING")

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))


def test_a_shard_that_dies_when_the_last_version_is_taken_is_not_missed(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.snapshots.may_finish.clear()
        await train_everything(run)
        assert run.controller.phase is RunPhase.FINISHING
        await run.happens(ShardDied(0))
        assert not run.shards.replaced
        run.snapshots.may_finish.set()
        await run.settle()
        assert ended(run)[0] == "SUCCEEDED"
        assert run.controller.result.lost_updates == 3

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))


def test_a_shard_lost_while_the_run_stops_ends_it_with_its_last_checkpoint(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.controller.stop(State.PAUSED)
        run.shards.failure = ShardLost("shard 0 has left nothing")
        await run.happens(ShardDied(0))
        assert ended(run) == ("PAUSED", "Paused", "paused with its last checkpoint: shard 0 has left nothing")

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))


def test_a_generation_through_shards_begins_at_the_version_that_they_agree_on(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.shards.version = 2
        await run.dies(1, 0)
        assert run.actor(0).called("train")[1][0].position.step == 2

    play(tmp_path, scenario, small(algorithm=SYNC_THROUGH_SHARDS))
