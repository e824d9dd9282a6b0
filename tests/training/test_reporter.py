"""What one worker reports of its time."""

from types import SimpleNamespace
from typing import Any

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
