"""How a run's latencies are told on the command line."""

import pytest

from api.cli.actions.jobs import print_result
from trainers.events import Result, State
from trainers.latency import Latency


def test_percentiles_of_what_was_counted_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    result = Result(
        job_id="job", state=State.SUCCEEDED, epochs=1, examples=1000, test_accuracy=None, test_loss=None,
        train_loss=None, examples_per_s=100.0, wall_s=10.0, algorithm="downpour", workers=2, model_path=None,
        message="", fetch_latency=Latency.of({39: 1200, 80: 60}),
    )  # fmt: skip
    print_result(result, False, "here")
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "Fetches: 1,260; 50 of 100 within 0.943 ms, 90 of 100 within 1.01 ms, 99 of 100 within 1.2 s."
    assert len(said) == 3  # nothing was pushed
