"""Which workers train on, and which leave, at the end of an asynchronous run."""

from pathlib import Path

from tests.runtime.control.fakes import EXAMPLES, FakeRun, play, small
from trainers.elastic.lease_table import Lease
from trainers.runtime.control.training import GroupPhase

TRAIN = small(algorithm="downpour", workers={"count": 2, "min": 1})


def generation(run: FakeRun, number: int) -> int:
    found: int = run.actor(number).called("train")[-1][0].endpoint.generation
    return found


def leases(run: FakeRun, number: int) -> list[Lease]:
    """Everything that a worker is given until it hears of the end."""
    found = list[Lease]()
    for _ in range(100):
        given = run.controller.lease(number, generation(run, number), ())
        found += [lease for lease in given if lease is not None]
        if None in given:
            return found
    raise AssertionError("there is no end")


def trains(run: FakeRun, number: int, *trained: Lease) -> None:
    for lease in trained:
        run.reports(number, applied=((lease.epoch, lease.first, lease.last),))


def assert_all_trained(run: FakeRun) -> None:
    assert run.log.states[-1] == ("RUNNING", "Training")
    assert run.controller.end is not None
    assert run.controller.end.state == "SUCCEEDED"
    (audit,) = run.log.of("epoch_audit")
    assert (audit["trained"], audit["lost"], audit["duplicated"]) == (EXAMPLES, 0, 0)


def test_what_a_worker_was_given_behind_the_end_that_it_had_heard_of_is_trained(tmp_path: Path) -> None:
    """Worker 0 asks ahead. It hears of the end, worker 1 dies with minibatches undone, and worker 0 is given those."""

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        run.pool.room.clear()
        undone = [lease for lease in run.controller.lease(1, generation(run, 1), ()) if lease is not None]
        trains(run, 0, *leases(run, 0))
        await run.dies(1)
        ahead = run.controller.lease(0, generation(run, 0), ())
        assert undone[0] in ahead
        await run.ends(0)  # without having looked at them
        assert run.controller.end is None
        assert len(run.actor(0).called("train")) == 2
        trains(run, 0, *leases(run, 0))
        await run.ends(0)
        assert_all_trained(run)

    play(tmp_path, scenario, TRAIN)


def test_a_worker_whose_group_has_nothing_left_to_train_leaves_when_it_is_told_to(tmp_path: Path) -> None:
    """Worker 0 trains the last minibatches as worker 1, which got none, is told to leave."""

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        under_way = leases(run, 0)
        assert leases(run, 1) == []
        await run.ends(1)
        assert run.training.phases == [GroupPhase.TRAINING, GroupPhase.RESTING]
        run.controller.scale(1)
        await run.settle()
        assert run.pool.let_go_of == [1]
        assert run.log.of("resize")[-1]["left"] == ["job/worker/1"]
        trains(run, 0, *under_way)
        await run.ends(0)
        assert_all_trained(run)

    play(tmp_path, scenario, TRAIN)
