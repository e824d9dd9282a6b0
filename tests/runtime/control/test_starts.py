"""How the actors of a run are got ready: one that dies over it is replaced, and the log says who and why."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.control.fake_actors import FakeActor, died, ended_by_ray
from tests.runtime.control.fakes import FakeRun, play, prepared
from tests.runtime.runs import spec
from trainers.errors import DataChanged, UserCodeFailed, WorkerDied
from trainers.events import NO_ROOM, State
from trainers.runtime import memory
from trainers.runtime.actor_handles import WorkerHandle
from trainers.runtime.control import launch
from trainers.runtime.control.ending import Circumstances, after_failure, last_word
from trainers.runtime.control.launch import Launcher
from trainers.runtime.control.run_log import summarise_log
from trainers.runtime.event_log import EventLog
from trainers.runtime.ray_data.blocks import Blocks


def ready(run: FakeRun, *answers: Any) -> list[Any]:
    """Have workers get ready of which each, and each that replaces one, gives the next answer."""
    left, pool = list(answers), run.pool

    def start_workers(reserved: list[Any]) -> list[WorkerHandle]:
        number = pool.num_started
        pool.num_started += 1
        worker = WorkerHandle(number, f"job/worker/{number}", FakeActor(prepare=left.pop(0)), reserved[0])
        pool.workers.append(worker)
        return [worker]

    pool.start_workers = start_workers  # type: ignore[method-assign]
    pool.end = lambda worker: None  # type: ignore[method-assign]
    for _ in range(2):
        pool.start_workers([None])
    launcher = Launcher(run.parts)
    return [launcher._prepare(rank, tries=True) for rank in range(2)]


def test_a_worker_that_dies_over_it_is_replaced_in_its_place(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        found = await asyncio.gather(*ready(run, died(), prepared(1), prepared(2)))
        assert [one.place.pid for one in found] == [2, 1]
        assert [worker.number for worker in run.pool.workers] == [2, 1]
        assert run.log.of("fault") == [{"actor": "job/worker/0", "why": "died before it was ready", "examples": 0}]

    play(tmp_path, scenario)


def test_one_that_ray_ends_for_memory_over_it_is_replaced_too(tmp_path: Path) -> None:
    """Its calls raise OutOfMemoryError, which is no RayActorError."""

    async def scenario(run: FakeRun) -> None:
        shards = [FakeActor(prepare=ended_by_ray()), FakeActor(prepare=prepared(4).place)]
        run.pool.shards = shards[:1]
        run.pool.restart_shard = lambda index: run.pool.shards.insert(index, shards[1])  # type: ignore[method-assign]
        warming = Launcher(run.parts)._warm_shard(0)
        found = await asyncio.gather(*ready(run, ended_by_ray(), prepared(1), prepared(2)), warming)
        assert [one.pid for one in (found[0].place, found[1].place, found[2])] == [2, 1, 4]
        why = "was ended by Ray for want of memory (OutOfMemoryError)"
        told = {one["actor"]: one["why"] for one in run.log.of("fault")}
        assert told == dict.fromkeys(("job/worker/0", "job/shard/0"), f"{why} before it was ready")
        lines = sorted(one["message"] for one in run.log.of("log"))
        assert [line.partition(": take a smaller")[0] for line in lines] == [
            f"job/shard/0 {why}", f"job/worker/0 {why}"]  # fmt: skip

    play(tmp_path, scenario)


def test_three_deaths_in_a_row_are_too_many(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        with pytest.raises(WorkerDied, match="3 processes were lost in a row before the run came any further"):
            await asyncio.gather(*ready(run, died(), prepared(1), died(), died()))

    play(tmp_path, scenario)


def test_those_that_die_with_their_node_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Ray has noticed, it puts one after the other on a node that is gone."""

    async def died_with(node: str | None) -> bool:
        return True

    monkeypatch.setattr(launch, "died_with", died_with)

    async def scenario(run: FakeRun) -> None:
        await asyncio.gather(*ready(run, died(), prepared(1), died(), died(), died(), prepared(5)))
        assert [worker.number for worker in run.pool.workers] == [5, 1]

    play(tmp_path, scenario)


def test_what_the_users_code_raises_is_raised_at_once(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        with pytest.raises(UserCodeFailed, match="no such folder"):
            await asyncio.gather(*ready(run, UserCodeFailed("no such folder"), prepared(1)))

    play(tmp_path, scenario)


def test_a_long_start_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PREPARING_S", 0.01)

    async def scenario(run: FakeRun) -> None:
        run.launcher.may_start.clear()
        run.controller.begin()
        while not (states := run.log.of("state")) or states[-1]["reason"] != "Preparing":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        said = states[-1]
        assert said["state"] == State.STARTING
        assert said["message"] == "worker/0 opens the dataset, 35 s"
        run.launcher.may_start.set()
        await run.settle()
        count = len(run.log.of("state"))
        await asyncio.sleep(0.05)
        assert len(run.log.of("state")) == count, "a run that trains waits for nothing"

    play(tmp_path, scenario, train=spec())


def test_one_that_has_no_room_says_so_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "PREPARING_S", 0.001)

    async def scenario(run: FakeRun) -> None:
        run.launcher.may_start.clear()
        run.pool.lacks = "waits for the cluster to grow: 2 of 2 workers of 1 CPU have no room yet"
        run.controller.begin()
        while len(run.log.of("state")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(20):
            await asyncio.sleep(0.001)
        first, *others = run.log.of("state")
        assert first["reason"] == "Starting"
        assert others == [{"state": State.STARTING, "reason": NO_ROOM, "message": run.pool.lacks}]
        run.pool.lacks = None
        while run.log.of("state")[-1]["reason"] != "Preparing":  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    play(tmp_path, scenario, train=spec())


def test_a_ray_dataset_that_is_executed_anew_gives_the_same_rows_or_the_run_ends(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        launcher = Launcher(run.parts)

        async def execute(digest: str, before: tuple[str, ...]) -> None:
            blocks = Blocks(refs=(), rows=(3, 2), num_bytes=80, largest=-1, digest=digest)
            run.pool.start_dataset = lambda: FakeActor(execute=[blocks])  # type: ignore[method-assign]
            await launcher._execute_dataset(before)

        await execute("5 rows ab", ())
        assert run.log.of("log")[-1]["digests"] == ["5 rows ab"]
        await execute("5 rows ab", ("5 rows ab",))
        with pytest.raises(DataChanged, match=r"gives 5 rows cd, and gave 5 rows ab before.*a seed") as found:
            await execute("5 rows cd", ("5 rows ab",))
        assert last_word(after_failure(found.value, Circumstances()), True, False).state is State.FAILED

    play(tmp_path, scenario)


def test_the_next_coordinator_reads_by_what_rows_are_known_again(tmp_path: Path) -> None:
    with contextlib.closing(EventLog(tmp_path)) as log:
        for digest in ("ab", "cd"):
            log.append("log", {"level": "info", "message": "data", "digests": [digest]})
        log.append("log", {"level": "info", "message": "more"})
    assert summarise_log(tmp_path).digests == ("cd",)


@pytest.mark.parametrize(
    ("before", "is_named"), [(("a", 4), True), (("a", 5), False), (("a", -1), False), (None, False)]
)
def test_one_that_the_kernel_has_ended_for_memory_over_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: tuple[str, int] | None, is_named: bool
) -> None:
    monkeypatch.setattr(memory, "ask_on", lambda node, function: 5)

    async def scenario(run: FakeRun) -> None:
        run.parts.watch.kills = before  # type: ignore[attr-defined]
        causes = "job/worker/0 was ended by the kernel for want of memory" if is_named else "job/worker/0 died"
        with pytest.raises(WorkerDied, match=f"further: {causes} before it was ready; "):
            await asyncio.gather(*ready(run, died(), prepared(1), died(), died()))
        lines = [one["message"] for one in run.log.of("log")]
        assert len(lines) == (3 if is_named else 0)
        assert all("for want of memory: take a smaller batch.per_worker" in line for line in lines)

    play(tmp_path, scenario)
