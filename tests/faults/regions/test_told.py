"""What the log and the result say of groups that were cut off, or lost with what they had not sent."""

from pathlib import Path

import pytest

from tests.runtime.control.fakes import MINIBATCH, FakeRun, play, small
from tests.runtime.control.test_training_end import generation
from trainers.metrics import StepMetrics
from trainers.training.messages import WorkerReport

GROUPS = {"name": "mixed", "group": 2, "push": "delta", "steps": 1, "outer": "average", "apart_s": 60}
TRAIN = small(algorithm=GROUPS, workers=4, epochs=1)


def said(run: FakeRun, words: str) -> list[str]:
    return [line["message"] for line in run.log.of("log") if words in line["message"]]


def test_a_group_that_is_back_is_told_of_once(tmp_path: Path) -> None:
    async def scenario(run: FakeRun) -> None:
        await run.begins()
        for number in (2, 3):
            for updates, apart in ((3, 0), (4, 4), (3, 0), (4, 5), (4, 1), (6, 0), (7, 0)):
                done = StepMetrics(steps=6, apart_steps=apart, examples=6 * MINIBATCH)
                run.controller.report(WorkerReport(number, generation(run, number), done, updates=updates))
        (line,) = said(run, "cut off")
        assert line == "the group of worker 2 was cut off from the shards, 10 steps long, and is back"

    play(tmp_path, scenario, TRAIN)


@pytest.mark.parametrize("push", ["delta", "whole"])
@pytest.mark.parametrize("how", ["dies", "is forgotten", "is held"])
def test_a_group_that_is_lost_costs_what_it_had_not_sent(push: str, how: str, tmp_path: Path) -> None:
    """Of four minibatches that it was leased two were applied: 10 examples are trained again. So where the shards have
    forgotten it since it was away for too long; and not where it ends a generation since somebody joins."""
    algorithm = GROUPS if push == "delta" else {"name": "mixed", "group": 2}
    train = TRAIN if push == "delta" else small(algorithm=algorithm, workers=4, epochs=1)

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        leases = [run.controller.lease(0, generation(run, 0), ())[0] for _ in range(2)]
        assert [len(lease) for lease in leases if lease] == [2, 2]
        assert leases[0] is not None
        run.reports(0, applied=((0, leases[0].first, leases[0].last),))
        if how == "dies":
            await run.dies(0, 1)
        else:
            run.training.groups[0].gate.is_stopped = True  # type: ignore[union-attr]
            await run.ends(0, 1, lost="shard 0 has forgotten this worker" if how == "is forgotten" else "")
        costs = push == "delta" and how != "is held"
        assert run.training.progress.unsent == 10 * costs
        told = (
            "group 0 begins anew: what it had changed with up to 10 examples was not sent, and they are trained again"
        )
        assert said(run, "was not sent") == [told] * costs

    play(tmp_path, scenario, train)
