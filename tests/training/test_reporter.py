"""What one worker reports of its time."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainers.algorithms.base import StepReport
from trainers.models.objective import Total
from trainers.training import reporter as reporters
from trainers.training.messages import WorkerReport
from trainers.training.reporter import Reporter, UnreadLoss


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


class Device:
    """Stands for a GPU: which losses were asked for, and so waited for."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def on_its_way(self, step: int, epoch: int, learning_rate: float, weight: float, loss: torch.Tensor) -> UnreadLoss:
        arrived: Any = SimpleNamespace(synchronize=lambda: self.asked.append(loss.item()))
        return UnreadLoss(step, epoch, learning_rate, weight, loss, arrived)


def test_a_report_waits_for_no_step_of_a_gpu_but_the_first_and_those_that_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, sent = Device(), list[WorkerReport]()
    monkeypatch.setattr(reporters, "_on_its_way", device.on_its_way)
    begin: Any = SimpleNamespace(number=0, endpoint=SimpleNamespace(generation=0))
    reporter = Reporter(begin, sent.append, 0.0)

    def step(loss: float, epoch: int = 0) -> bool:
        reporter.count_step(epoch, StepReport(Total(torch.tensor(loss), 4.0), 4, 0.1), 0.5)
        return reporter.is_due

    assert step(1.0)
    reporter.report(1, 4)
    assert device.asked == [1.0]
    assert not step(2.0), "whose loss is not there, and no other either"
    assert step(3.0)
    reporter.report(3, 12)
    assert device.asked == [1.0, 2.0]
    assert step(4.0)
    reporter.report(4, 16, waits=True)
    assert device.asked == [1.0, 2.0, 3.0, 4.0]
    found = [(one.metrics.steps, one.metrics.loss, one.metrics.weight, one.metrics.by_epoch) for one in sent]
    assert found == [
        (1, 1.0, 4.0, {0: (1.0, 4.0)}),
        (2, 2.0, 4.0, {0: (2.0, 4.0)}),
        (1, 7.0, 8.0, {0: (7.0, 8.0)}),
    ]


def test_the_first_step_of_an_epoch_on_a_gpu_reports_all_losses_of_the_epoch_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = list[WorkerReport]()
    monkeypatch.setattr(reporters, "_on_its_way", Device().on_its_way)
    begin: Any = SimpleNamespace(number=0, endpoint=SimpleNamespace(generation=0))
    reporter = Reporter(begin, sent.append, 60.0)
    for epoch in (0, 0, 0, 1):
        reporter.count_step(epoch, StepReport(Total(torch.tensor(2.0), 4.0), 4, 0.1), 0.5)
        if reporter.is_due:
            reporter.report(1, 4)
    assert [one.metrics.by_epoch for one in sent] == [{0: (2.0, 4.0)}, {0: (4.0, 8.0), 1: (0.0, 0.0)}]
