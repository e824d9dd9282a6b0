"""What Triton compiles for GPUs, where there is none: compiled for one, and run by Triton's interpreter. tests/gpu has
the bits."""

import importlib
import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="torch brings no triton here")

KERNELS = ("sgd.sgd", "momentum.momentum", "momentum.velocity", "nesterov.nesterov", "adam.adam")
PLACES = {"exempt": "*i1", "numel": "i64"}
CONSTANTS = {"DECAYS": True, "EXEMPTS": True, "BLOCK": 1024, "LOG_B1": -0.1, "LOG_B2": -0.001}
VECTORS = {"total", "w", "u", "m", "s", "step"}


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_compiled_for_a_gpu(name: str) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    folder, kernel = name.split(".")
    function = getattr(importlib.import_module(f"trainers.optim.optimizers.{folder}.gpu_kernel"), kernel)
    is_vector = VECTORS - ({"m"} if kernel != "adam" else set())
    kinds = {a: "*fp32" if a.removesuffix("_next") in is_vector else "fp32" for a in function.arg_names}
    constants = {a: value for a, value in CONSTANTS.items() if a in function.arg_names}
    signature = kinds | PLACES | dict.fromkeys(constants, "constexpr")
    source = ASTSource(function, signature, {(function.arg_names.index(a),): v for a, v in constants.items()})
    found = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    assert "fma.rn.f32" in found.asm["ptx"]
    assert "mul.f32" in found.asm["ptx"] or "mul.rn.f32" in found.asm["ptx"]


def test_the_kernels_have_the_numbers_of_those_for_the_cpu() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.optim.interpreted"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
