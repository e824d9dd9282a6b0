"""A run through Ray whose workers share a GPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import trainers
from tests.gpu.runs import DIGITS
from trainers import ClusterInfo, TrainSpec, train

SPEC = DIGITS | {"model": "lenet5", "epochs": 2}


@pytest.fixture(scope="module")
def gpus() -> Iterator[ClusterInfo]:
    with trainers.embedded(num_cpus=8) as info:
        yield info


def finished(folder: Path, **fields: Any) -> dict[str, torch.Tensor]:
    result = train(TrainSpec.model_validate(SPEC | fields), folder)
    assert result.model_path is not None
    return load_file(result.model_path)


def test_one_and_two_workers_on_one_gpu_give_the_same_bits(gpus: ClusterInfo, tmp_path: Path) -> None:
    one = finished(tmp_path / "one", workers={"count": 1, "virtual": 2, "gpus": 1})
    two = finished(tmp_path / "two", workers={"count": 2, "gpus": 0.5})
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_downpour_with_two_workers_on_one_gpu(gpus: ClusterInfo, tmp_path: Path) -> None:
    workers = {"count": 2, "gpus": 0.5}
    found = finished(tmp_path / "run", algorithm="downpour", workers=workers, ps=2, optimizer="adagrad")
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_rows_divided_between_two_workers_on_one_gpu_give_the_numbers_of_the_cpu(
    gpus: ClusterInfo, tmp_path: Path
) -> None:
    """As processes: backward passes of threads would share the one thread that torch has for each GPU, and in them
    workers wait for each other."""
    fields: dict[str, Any] = {"algorithm": "spatial", "optimizer": {"name": "sgd", "lr": 0.01}, "epochs": 1}
    on_gpu = finished(tmp_path / "gpu", workers={"count": 2, "gpus": 0.5}, **fields)
    on_cpu = finished(tmp_path / "cpu", workers={"count": 2}, device="cpu", **fields)
    for name, value in on_gpu.items():
        torch.testing.assert_close(value, on_cpu[name], rtol=1e-3, atol=1e-4)
