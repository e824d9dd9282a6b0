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
            for steps, apart in ((3, 0), (4, 4), (5, 5), (6, 1), (6, 0)):
                done = StepMetrics(steps=steps, apart_steps=apart, examples=steps * MINIBATCH)
                run.controller.report(WorkerReport(number, generation(run, number), done))
        (line,) = said(run, "cut off")
        assert line == "the group of worker 2 was cut off from the shards, 10 steps long, and is back"

    play(tmp_path, scenario, TRAIN)


@pytest.mark.parametrize("push", ["delta", "whole"])
def test_a_group_that_is_lost_costs_what_it_had_not_sent(push: str, tmp_path: Path) -> None:
    """Of four minibatches that it was leased two were applied: 10 examples are trained by others."""
    algorithm = GROUPS if push == "delta" else {"name": "mixed", "group": 2}
    train = TRAIN if push == "delta" else small(algorithm=algorithm, workers=4, epochs=1)

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        leases = [run.controller.lease(0, generation(run, 0), ())[0] for _ in range(2)]
        assert [len(lease) for lease in leases if lease] == [2, 2]
        assert leases[0] is not None
        run.reports(0, applied=((0, leases[0].first, leases[0].last),))
        await run.dies(0, 1)
        progress = run.training.progress
        assert progress.unsent == (10 if push == "delta" else 0)
        told = "group 0 lost a worker, and what it changed with up to 10 examples had not been sent: others train these"
        assert said(run, "had not been sent") == [f"{told} again"] * (push == "delta")

    play(tmp_path, scenario, train)
