"""The examples on MNIST come to the accuracies that the guide gives."""

from pathlib import Path

import pytest

import trainers
from service import read_spec_file
from tests.runtime.runs import finished
from trainers import ClusterInfo

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCURACIES = {
    "sync": 0.989,
    "downpour": 0.987,
    "mixed": 0.985,
    "admm": 0.985,
    "hybrid": 0.99,
    "parallel-sgd": 0.987,
}
"""The least that each must reach on the test images; the guide says what was measured."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ACCURACIES)
def test_an_example_comes_to_its_accuracy(name: str, cluster: ClusterInfo, mnist_root: Path, tmp_path: Path) -> None:
    spec = read_spec_file(EXAMPLES / f"mnist-{name}.yaml", [f"data.root={mnist_root}"])
    try:
        run = finished(spec.name, spec.train, tmp_path, within_s=1500)
    finally:
        trainers.cleanup_run(spec.name)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    (result,) = run.of("result")
    assert result["test_accuracy"] >= ACCURACIES[name]
