"""What one worker reports of its time."""

from types import SimpleNamespace
from typing import Any

from trainers.algorithms.base import StepReport
from trainers.models.objective import Total
from trainers.training.messages import WorkerReport
from trainers.training.reporter import Reporter


def test_no_waiting_is_counted_against_data_that_were_not_waited_for() -> None:
    told: list[Any] = []
    begin: Any = SimpleNamespace()
    reporter = Reporter(begin, told.append, every_s=1.0)
    others: Any = SimpleNamespace(waited_s=0.0)
    reporter.connect(others, None)
    others.waited_s = 0.017  # before the first step
    reporter.restart()
    reporter.count_data(0.001)
    assert (reporter.metrics.wait_data_s, reporter.metrics.wait_communication_s) == (0.001, 0.0)
    others.waited_s = 0.5  # between two steps
    reporter.count_wait()
    others.waited_s = 0.25  # while examples move between workers
    reporter.count_data(0.75)
    assert (reporter.metrics.wait_data_s, reporter.metrics.wait_communication_s) == (0.501, 0.75)
    others.waited_s = 2.0  # of a helper that began to wait before
    reporter.count_data(1.0)
    assert reporter.metrics.wait_data_s == 0.501


def test_steps_add_up_and_what_was_reported_stays_as_it_was() -> None:
    sent: list[WorkerReport] = []
    begin: Any = SimpleNamespace(number=0, endpoint=SimpleNamespace(generation=0))
    reporter = Reporter(begin, sent.append, 60.0)
    for epoch, loss in ((0, 0.5), (0, 0.25), (1, 2.0)):
        reporter.count_step(epoch, StepReport(Total(loss, 4.0), 4, 0.1, norms=(3.0,)), 0.5)
    reporter.report(3, 12)
    reporter.count_step(1, StepReport(Total(1.0, 4.0), 4, 0.1), 0.5)
    reporter.report(4, 16)
    first, second = (one.metrics for one in sent)
    assert (first.steps, first.examples, first.loss, first.weight, first.norm, first.norms) == (3, 12, 2.75, 12, 9, 3)
    assert (first.by_epoch, first.compute_s) == ({0: (0.75, 8.0), 1: (2.0, 4.0)}, 1.5)
    assert (second.steps, second.loss, second.by_epoch) == (1, 1.0, {1: (1.0, 4.0)})
