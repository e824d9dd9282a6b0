"""The small twins run, on Ray: each for one epoch of few examples, whatever it then knows."""

from pathlib import Path

import pytest

import trainers
from service import JobSpec, read_spec_file
from tests.examples.papers import FOLDER, PAIRS, Pair
from tests.runtime.runs import finished
from trainers import ClusterInfo


def shortened(path: Path, data_root: Path, weights: Path | None = None) -> JobSpec:
    """One epoch of as few examples as make two steps, with nothing of the recipe that needs more epochs."""
    spec = read_spec_file(path, [f"data.root={data_root}", "epochs=1", "warmup=none", "checkpoint.every_epochs=0"])
    batch = spec.global_batch
    model = {} if spec.model.weights is None else {"weights": str(weights)}
    return spec.model_copy(
        update={
            "data": spec.data.model_copy(update={"limit": max(2 * min(batch, 1024), 256)}),
            "model": spec.model.model_copy(update=model),
        }
    )


@pytest.fixture(scope="module")
def pretrained(cluster: ClusterInfo, mnist_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pretrain.yaml` leaves."""
    folder = tmp_path_factory.mktemp("pretrain")
    spec = shortened(FOLDER / "3-gpu-cluster/small/pretrain.yaml", mnist_root)
    finished("pretrain", spec.train, folder)
    return folder / "model.safetensors"


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_twin_trains(pair: Pair, mnist_root: Path, pretrained: Path, tmp_path: Path) -> None:
    spec = shortened(pair.twin_path, mnist_root, pretrained)
    try:
        run = finished(f"twin-{spec.name}", spec.train, tmp_path)
    finally:
        trainers.cleanup_run(f"twin-{spec.name}")  # one that hangs takes nothing from the next
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    (result,) = run.of("result")
    assert result["examples"] == spec.data.limit
    assert (tmp_path / "model.safetensors").exists()
