"""What training counts adds up, whoever counted it."""

import pickle
from itertools import permutations

from trainers.events import Metrics
from trainers.latency import bucket_of
from trainers.links.meter import Meter
from trainers.metrics import StepCounters, StepMetrics

ONE = StepMetrics(
    steps=1, examples=8, loss=2.0, by_epoch={0: (2.0, 8)}, staleness={0: 1}, group_staleness=({0: 1}, {1: 1})
)
TWO = StepMetrics(
    steps=2, examples=8, loss=4.0, by_epoch={0: (1.0, 4), 1: (3.0, 4)}, staleness={0: 1, 3: 1}, sent_bytes=12,
    group_staleness=({0: 2}, {0: 1, 1: 1}),
)  # fmt: skip
IDLE = StepMetrics(wait_data_s=0.5, dropped=1)


def test_every_field_adds_up_in_any_order() -> None:
    for one, two, three in permutations([ONE, TWO, IDLE]):
        assert one + two + three == StepMetrics(
            steps=3, examples=16, loss=6.0, by_epoch={0: (3.0, 12), 1: (3.0, 4)}, staleness={0: 2, 3: 1}, dropped=1,
            group_staleness=({0: 3}, {0: 1, 1: 2}), sent_bytes=12, wait_data_s=0.5,
        )  # fmt: skip
    assert ONE.steps == 1
    assert ONE.by_epoch == {0: (2.0, 8)}


def test_no_field_is_left_out_of_a_sum() -> None:
    """A new counter needs no line elsewhere."""
    for kind in (StepCounters, StepMetrics):
        for name, field in kind.model_fields.items():
            counts = {each: {1: 1} for each in ("staleness", "fetch_latency", "push_latency")}
            more = {"by_epoch": {0: (1.0, 2)}, "group_staleness": ({1: 1},), **counts}.get(name, 1)
            assert getattr(kind() + kind.model_validate({name: more}), name) == more != field.get_default()


def test_what_a_transport_counted_is_added_to_what_its_worker_did() -> None:
    meter = Meter()
    meter.count_vectors(sent=10, received=20, crossed=5)
    meter.count_push(num_bytes=12)
    meter.count_fetch(received=4, wait_s=0.25, latency_s=0.5)
    meter.count_acknowledged(0.001)
    total = ONE + meter.take()
    assert (total.steps, total.sent_bytes, total.received_bytes, total.crossed_bytes) == (1, 52, 96, 20)
    assert (total.pushes, total.pushed_bytes, total.fetches, total.fetched_bytes) == (1, 12, 1, 16)
    assert total.wait_fetch_s == 0.25
    assert (total.fetch_latency, total.push_latency) == ({bucket_of(0.5): 1}, {bucket_of(0.001): 1})
    assert meter.take() == StepCounters()


def test_the_event_tells_every_counter() -> None:
    assert set(StepCounters.model_fields) < set(Metrics.model_fields)


def test_metrics_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(TWO)) == TWO
