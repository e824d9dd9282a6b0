"""The small GPT on Shakespeare's works learns as well as is promised, with every algorithm of the report."""

from pathlib import Path

import pytest

from benchmarks.measurement.workload import SHAKESPEARE
from benchmarks.shakespeare import BOUND, NEAR, VARIANTS, markdown, measure, spec_of


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_train_the_same_windows_of_the_example(variant: str) -> None:
    spec = spec_of(variant, Path("text"), seed=3)
    assert (spec.algorithm.name, spec.seed, spec.max_examples) == (variant, 3, 24_000)


def test_the_report_holds_every_algorithm_against_sync() -> None:
    runs = {"sync": [1.87], "downpour": [1.90], "parallel_sgd": [1.93]}
    found = {
        n: [{"loss": x, "perplexity": 6.5, "windows": 24_001, "seconds": 60.0} for x in each]
        for n, each in runs.items()
    }
    lines = markdown(found, ("0 0 0", "0 0 0")).splitlines()[-3:]
    assert ["missed" in line for line in lines] == [False, False, True]


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not SHAKESPEARE.is_file(), reason="the text is not there")
def test_it_learns_shakespeare() -> None:
    losses = {variant: measure(variant, SHAKESPEARE, seed=0)["loss"] for variant in VARIANTS}
    assert losses["sync"] <= BOUND
    assert max(losses.values()) <= losses["sync"] + NEAR
