"""Backup workers on a real Ray: a slow worker is dropped and every example is trained once an epoch all the same."""

from pathlib import Path

import pytest

from benchmarks.measurement.slowdown import slowed
from tests.runtime.runs import gone_soon, spec, start

pytestmark = pytest.mark.usefixtures("cluster")

BACKUP = {"name": "sync", "form": "parameter_server", "backup": 1}


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shared_memory", pytest.param("process_group", marks=pytest.mark.slow)])
def test_a_slow_worker_is_dropped_and_its_examples_return_to_the_epoch(tmp_path: Path, transport: str) -> None:
    fields = {"algorithm": BACKUP, "workers": {"count": 3, "cpus": 1}, "transport": transport}
    train = spec(**fields, data="digits", batch=8, epochs=6, ps=3)
    run = start(f"backup-{transport}", train, tmp_path)
    run.until(lambda event: event.type == "step")
    (actors,) = run.of("actors")
    with slowed(actors["workers"][2]["pid"], factor=10):
        assert run.end().data["state"] == "SUCCEEDED", run.events[-1]
    (result,) = run.of("result")
    last = run.of("step")[-1]
    assert result["examples"] == last["examples"] == 6 * 1437
    assert [epoch["examples"] for epoch in run.of("epoch")] == sorted(epoch["examples"] for epoch in run.of("epoch"))
    assert len(run.of("epoch")) == 6
    assert result["dropped"] == last["dropped"] > 0
    assert last["staleness"] == {"0": 6 * 180}, "a push for every minibatch, none of them late"
    assert 6 * 180 / 2 <= last["step"] < 6 * 180 * 0.6
    assert result["test_accuracy"] > 0.85
    gone_soon(f"backup-{transport}", [a["pid"] for a in (*actors["workers"], *actors["shards"])])
