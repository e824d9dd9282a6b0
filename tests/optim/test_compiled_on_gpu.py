"""What Triton compiles for GPUs, by its interpreter: tests/gpu has the bits, on one."""

import importlib.util
import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="torch brings no triton here")
def test_the_kernels_for_gpus_have_the_numbers_of_those_for_the_cpu() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.optim.interpreted"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
