"""Dynamic local updates: the coordinator leases to each worker as many minibatches as its speed gives it."""

from pathlib import Path

import pytest

from tests.runtime.control.fakes import EXAMPLES, MINIBATCH, FakeRun, play, small
from tests.runtime.control.test_training_end import generation
from trainers.elastic.lease_table import Lease
from trainers.metrics import StepMetrics
from trainers.training.messages import WorkerReport

TRAIN = small(algorithm={"name": "downpour", "push": "delta", "steps": 4, "dynamic": True}, workers=2, epochs=3)


@pytest.mark.parametrize(("slowness", "lengths"), [(1.0, [4, 4, 4, 4, 4, 4]), (2.5, [4, 4, 4, 1, 3, 1, 4, 1, 2])])
def test_a_slower_worker_is_given_shorter_rounds(tmp_path: Path, slowness: float, lengths: list[int]) -> None:
    """Speeds are not known in the first round of each; an epoch's end cuts a round short."""

    async def scenario(run: FakeRun) -> None:
        await run.begins()
        found, number = list[Lease](), 0
        while True:
            (lease,) = run.controller.lease(number, generation(run, number), ())
            if lease is None:
                break
            found.append(lease)
            span = lease.epoch, lease.first, lease.last
            done = StepMetrics(steps=1, examples=MINIBATCH, compute_s=slowness if number else 1.0)
            run.controller.report(WorkerReport(number, generation(run, number), done, applied=(span,)))
            number = 1 - number
        assert [len(lease) for lease in found] == lengths
        for audit in run.log.of("epoch_audit"):
            assert (audit["trained"], audit["lost"], audit["duplicated"]) == (EXAMPLES, 0, 0)

    play(tmp_path, scenario, TRAIN)
