"""What the benchmark of hybrid parallelism makes of its measurements."""

from pathlib import Path

from benchmarks.hybrid import ALONE, ALONE_OURS, SCHEMES, comparisons, markdown
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.millrace_runs import SENT_BYTES
from benchmarks.measurement.results import DDP


def measured(rate: float, sent: float = 0.0) -> Measurement:
    return Measurement(rate, 0.01, {SENT_BYTES: sent} if sent else {})


def test_the_best_scheme_is_held_against_the_contract() -> None:
    convnet, alex = comparisons(Path("nowhere"), seconds=1.0)
    a, b, c = SCHEMES
    for slower in (1.0, 0.5):  # a slow round counts for both
        convnet.rounds.append(
            {DDP: measured(1000 * slower), a: measured(1500 * slower, 1.5e6), b: measured(1300 * slower, 9e6)}
        )
        alone = {ALONE: measured(9 * slower), ALONE_OURS: measured(10 * slower)}
        alex.rounds.append(alone | {a: measured(17 * slower), c: measured(18 * slower)})
    text = markdown((convnet, alex), {})
    assert "| convnet: best scheme to DDP | at least 1.4 | 1.5 | 1.5..1.5 | met |" in text
    alone = "alexnet: best scheme to one process alone with the same products"
    assert f"| {alone} | at least 1.95 | 1.8 | 1.8..1.8 | **missed** by 7.7% |" in text
    assert "to DDP's | at most 0.1 | 0.0867 | 0.0867..0.0867 | met |" in text


def test_a_contender_that_fails_is_left_out_and_named() -> None:
    convnet, alex = comparisons(Path("nowhere"), seconds=1.0)
    convnet.contenders = {DDP: lambda work: measured(2.0), "other": alex.contenders[ALONE]}
    convnet.failures["other"] = "it did not start"
    convnet.round(1)
    assert list(convnet.rounds[0]) == [DDP]
    assert "- other: it did not start" in markdown((convnet, alex), {})


def test_the_report_is_written_where_every_contender_fails() -> None:
    convnet, alex = comparisons(Path("nowhere"), seconds=1.0)
    convnet.failures = dict.fromkeys(convnet.contenders, "it found no data")
    convnet.round(1)
    assert convnet.rounds == [{}]
    assert "it found no data" in markdown((convnet, alex), {})
