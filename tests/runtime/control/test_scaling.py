"""A run whose workers become more or fewer while it trains, without Ray."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.runtime.control.fakes import FakeRun, play, small
from trainers.elastic.binding import CoreMap
from trainers.errors import SpecRejected
from trainers.runtime.control.run_events import NodesDraining

STARTED = [("STARTING", "Starting"), ("RUNNING", "Training")]


def test_scaling_up_and_down_changes_the_group_between_two_steps(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.controller.scale(4)
        await run.settle()
        assert [worker.number for worker in run.pool.workers] == [0, 1, 2, 3]
        assert len(run.actor(2).called("train")) == 0
        await run.ends(0, 1)
        assert [run.actor(number).called("train")[-1][0].endpoint.size for number in range(4)] == [4] * 4
        run.controller.scale(1)
        await run.settle()
        assert run.pool.let_go_of == []
        await run.ends(0, 1, 2, 3, step=2)
        assert run.pool.let_go_of == [1, 2, 3]
        assert run.actor(0).called("train")[-1][0].endpoint.size == 1
        assert [one["workers"] for one in run.log.of("resize")] == [3, 4, 1, 1, 1]

    play(tmp_path, scenario)


def test_each_worker_keeps_to_cores_of_its_own_also_after_another_has_left(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        cores = CoreMap((((0, 4), (1, 5)), ((2, 6),)))

        def cpus(number: int) -> tuple[int, ...]:
            return tuple(run.actor(number).called("train")[-1][0].cpus)

        await run.begins()
        run.controller.scale(4)
        await run.settle()
        for worker in run.pool.workers:
            assert worker.prepared is not None
            worker.prepared = replace(worker.prepared, cores=cores)
        await run.ends(0, 1)
        assert list(map(cpus, range(4))) == [(0, 4), (2, 6), (1, 5), ()]  # three cores for four workers
        run.controller.scale(2)
        await run.settle()
        await run.ends(0, 1, 2, 3, step=2)
        assert list(map(cpus, range(2))) == [(0, 4), (2, 6)]

    play(tmp_path, scenario, small(workers={"count": 2, "virtual": 4, "max": 4, "bind": "cores"}))


def test_a_size_that_the_spec_does_not_allow_is_refused(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        with pytest.raises(SpecRejected, match="1 to 4 of them, not 5"):
            run.controller.scale(5)
        await run.settle()
        assert len(run.pool.workers) == 2

    play(tmp_path, scenario)


def test_the_workers_of_a_draining_node_leave_and_others_are_started(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.node = "b"
        await run.happens(NodesDraining(frozenset("a")))
        assert [worker.is_leaving for worker in run.pool.workers] == [True, True, False, False]
        await run.ends(0, step=3)
        await run.ends(1, step=2)
        # Worker 0 alone has the newest version: it hands that on, and leaves after it.
        assert run.pool.let_go_of == [1]
        assert run.actor(2).called("train")[0][0].root == 2
        await run.ends(2, 3, step=3)
        await run.ends(0, step=2)
        assert run.pool.let_go_of == [1, 0]
        assert [worker.number for worker in run.training.groups[0].members] == [2, 3]

    play(tmp_path, scenario, small(transport="auto"))
