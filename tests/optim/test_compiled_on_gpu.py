"""What Triton compiles for GPUs, where there is none: compiled for one, and run by Triton's interpreter. tests/gpu has
the bits."""

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="torch brings no triton here")


@pytest.mark.parametrize(("program", "interprets"), [("compiled_for_a_gpu", "0"), ("interpreted", "1")])
def test_the_kernels_are_compiled_and_have_the_numbers_of_those_for_the_cpu(program: str, interprets: str) -> None:
    environment = os.environ | {"TRITON_INTERPRET": interprets}
    command = [sys.executable, "-m", f"tests.optim.{program}"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
