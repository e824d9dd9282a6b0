"""The serial programs with which tests/gpu compares runs on a GPU, here on the CPU: so they are tried where none is."""

from pathlib import Path

import pytest
import torch

from tests.gpu.runs import gpu_spec, train_alone
from tests.gpu.test_algorithms import DOWNPOUR, serial_through_the_cpu, trained
from tests.gpu.test_equality import LANGUAGE, serial


def test_windows_of_tokens_are_trained(tmp_path: Path) -> None:
    fields = LANGUAGE | {"model": {"name": "gpt", "kwargs": {"layers": 1, "heads": 2, "width": 16}}, "device": "cpu"}
    assert train_alone(gpu_spec(1, 2, **fields, workers={"count": 1, "virtual": 2}), tmp_path).loss > 0


@pytest.mark.parametrize("virtual", [1, 2])
def test_one_worker_is_serial_pytorch(virtual: int, tmp_path: Path) -> None:
    spec = gpu_spec(1, virtual, device="cpu", workers={"count": 1, "virtual": virtual})
    torch.testing.assert_close(train_alone(spec, tmp_path).params, serial(spec), rtol=1e-4, atol=1e-6)


def test_downpour_of_one_worker_is_serial_pytorch(tmp_path: Path) -> None:
    spec = gpu_spec(1, algorithm=DOWNPOUR, ps=2, device="cpu", workers={"count": 1})
    found, expected = trained(spec, tmp_path / "run"), serial_through_the_cpu(spec)
    torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-4, atol=1e-6)
