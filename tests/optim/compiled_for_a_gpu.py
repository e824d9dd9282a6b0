"""Compiles each kernel for a GPU, where there is none. Triton tells of objects that it leaves behind when its process
ends, so this is a process of its own."""

import importlib

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

KERNELS = ("sgd.sgd", "momentum.momentum", "momentum.velocity", "nesterov.nesterov", "adam.adam")
PLACES = {"exempt": "*i1", "numel": "i64"}
CONSTANTS = {"DECAYS": True, "EXEMPTS": True, "BLOCK": 1024, "LOG_B1": -0.1, "LOG_B2": -0.001}
VECTORS = {"total", "w", "u", "m", "s", "step"}


def main() -> None:
    """Raises if one is not compiled, or to other operations than those whose bits are known."""
    for name in KERNELS:
        folder, kernel = name.split(".")
        function = getattr(importlib.import_module(f"trainers.optim.optimizers.{folder}.gpu_kernel"), kernel)
        is_vector = VECTORS - ({"m"} if kernel != "adam" else set())
        kinds = {a: "*fp32" if a.removesuffix("_next") in is_vector else "fp32" for a in function.arg_names}
        constants = {a: value for a, value in CONSTANTS.items() if a in function.arg_names}
        signature = kinds | PLACES | dict.fromkeys(constants, "constexpr")
        source = ASTSource(function, signature, {(function.arg_names.index(a),): v for a, v in constants.items()})
        found = compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
        assert "fma.rn.f32" in found.asm["ptx"], name
        assert "mul.f32" in found.asm["ptx"] or "mul.rn.f32" in found.asm["ptx"], name
        print(name)


if __name__ == "__main__":
    main()
