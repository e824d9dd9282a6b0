"""What the workers tell is added up the same in whatever order it arrives."""

from itertools import permutations

import pytest

from service.tracking.scalars import Scalars
from trainers.events import Event
from trainers.metrics import StepMetrics
from trainers.runtime.metrics_aggregator import NOISE_KEEPS, MetricsAggregator
from trainers.training.messages import WorkerReport


def report(number: int, updates: int, learning_rate: float) -> WorkerReport:
    """Of a synchronous worker, after so many steps of ten examples."""
    metrics = StepMetrics(steps=1, examples=5, loss=1.0, by_epoch={0: (1.0, 5)})
    return WorkerReport(number, 0, metrics, learning_rate, updates=updates, reached=10 * updates)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_order_of_reports_comes_to_the_same(order: tuple[int, ...]) -> None:
    reports = [report(0, 1, 0.1), report(0, 2, 0.2), report(1, 1, 0.1), report(1, 2, 0.2)]
    account = MetricsAggregator(20)
    account.begin([0, 1], 0)
    for index in order:
        account.add(reports[index])
    assert (account.examples, account.updates, account.learning_rate) == (20, 2, 0.2)
    assert account.epoch_is_done(0)
    assert account.train_loss(0) == 0.2


@pytest.mark.parametrize(("norms", "told"), [((1.0, 4.0), 2.5), ((1.0, float("inf")), None), ((), None)])
def test_the_norm_of_the_gradients_is_the_mean_over_updates(norms: tuple[float, ...], told: float | None) -> None:
    """JSON has no infinity."""
    account = MetricsAggregator(20)
    account.begin([0, 1], 0)
    for number in (0, 1):
        metrics = StepMetrics(steps=1, norm=sum(norms), norms=len(norms))
        account.add(WorkerReport(number, 0, metrics, 0.1, updates=1, reached=10, loss_scale=512.0 * number))
    found = account.metrics()
    assert found is not None
    assert (found.gradient_norm, found.loss_scale) == (told, 512.0)
    step = Event(seq=1, time=0.0, type="step", data=found.model_dump())
    assert (Scalars().points(step) or {}).get("train/gradient_norm") == told


def test_the_noise_scale_is_a_quotient_of_averages_of_what_one_worker_tells() -> None:
    account = MetricsAggregator(20)
    account.begin([0, 1], 0)
    for reached, signal, noise in ((10, 1.0, 30.0), (20, 3.0, 10.0)):
        for number in (0, 1):
            told = {"signal": signal, "noise": noise, "noises": 2} if number == 0 else {}
            account.add(WorkerReport(number, 0, StepMetrics(steps=2, **told), 0.1, updates=2, reached=reached))
        found = account.metrics()
        assert found is not None
        if reached == 10:
            assert found.noise_scale == pytest.approx(30.0)
    keeps = NOISE_KEEPS**2
    assert found.noise_scale == pytest.approx((keeps * 15.0 + 5.0) / (keeps * 0.5 + 1.5))
    assert account.mean_noise_scale == pytest.approx(40.0 / 4.0)
    account.add(WorkerReport(1, 0, StepMetrics(steps=1), 0.1, updates=3, reached=20))
    silent = account.metrics()
    assert silent is not None
    assert silent.noise_scale is None
    assert MetricsAggregator(20).mean_noise_scale is None


def test_a_rate_does_not_jump_by_whole_reports_where_epochs_are_short() -> None:
    """A worker reports each epoch of 1437 examples after 0.4 s; an event has two or three of these reports."""
    account = MetricsAggregator(1437)
    account.begin([0], 0)
    rates = []
    for count in (2, 3, 2, 1):
        for _ in range(count):
            account.add(WorkerReport(0, 0, StepMetrics(steps=1, examples=1437), seconds=0.4, reached=1437))
        found = account.metrics()
        assert found is not None
        rates.append(found.examples_per_s)
    assert rates == pytest.approx([1437 / 0.4] * 4)


def test_workers_that_report_in_turns_are_counted_together_and_those_who_left_are_not() -> None:
    account = MetricsAggregator(1000)
    account.begin([0, 1], 0)
    told = []
    for number in (0, 1, 0):
        account.add(WorkerReport(number, 0, StepMetrics(steps=1, examples=50), seconds=5.0, reached=50))
        told.append(account.metrics())
    account.add(WorkerReport(1, 0, StepMetrics(steps=1, examples=50), seconds=5.0, reached=50))
    account.begin([0], 100)
    account.add(WorkerReport(0, 1, StepMetrics(steps=1, examples=50), seconds=5.0, reached=150))
    told.append(account.metrics())
    assert [(one.examples_per_s, one.workers) for one in told if one] == [(10, 2), (20, 2), (20, 2), (10, 1)]
