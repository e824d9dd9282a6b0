"""In which numbers a model computes: torch's autocast around a pass, and float32 for all that comes out of it.

Parameters, their gradients, buffers and losses stay float32, as in Micikevicius et al. 2018, section 3.1: autocast
converts what goes into products and convolutions.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from trainers.models.names import PrecisionName

REDUCED: dict[PrecisionName, torch.dtype] = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""The types of products, where that is not float32. tf32 is none: the device rounds what goes into a product."""

WANTED: dict[PrecisionName, dict[str, tuple[str, ...]]] = {
    "bfloat16": {"AVX512-BF16": ("avx512_bf16", "bf16"), "AMX": ("amx_bf16",)},
    "float16": {"AVX512-FP16": ("avx512_fp16", "fp16_arith"), "AMX-FP16": ("amx_fp16",)},
}
"""The instructions of a processor for a type, as people call them, with torch's names on x86 and Arm."""


def computing_in(precision: PrecisionName, device: torch.device) -> AbstractContextManager[Any]:
    """What a pass on this device is made in.

    Without autocast's cache: it is one for all threads of a process, and whichever leaves autocast first clears it. A
    weight that is used twice would have its gradients added in one type or the other, as the threads happened to run.
    """
    if precision not in REDUCED:
        return nullcontext()
    return torch.autocast(device.type, REDUCED[precision], cache_enabled=False)


def in_float32(outputs: Any) -> Any:
    """What a model gives, a tensor or some in containers, with what was computed in fewer bits as float32."""
    return _widened(outputs) if isinstance(outputs, Tensor) else tree_map_only(Tensor, _widened, outputs)


def answer_in_float32(model: nn.Module) -> nn.Module:
    """Have the model itself give float32, so that losses and metrics are computed in that."""
    if _widen_outputs not in model._forward_hooks.values():  # a copy has the hooks of what it is copied from
        model.register_forward_hook(_widen_outputs)
    return model


def _widen_outputs(_model: nn.Module, _inputs: Any, outputs: Any) -> Any:
    return in_float32(outputs)


def _widened(value: Tensor) -> Tensor:
    return value.float() if value.dtype in REDUCED.values() else value


def emulated(precision: PrecisionName, device: torch.device) -> str:
    """What is to be told where this device has no instructions for a type and makes do; empty where it has."""
    if precision not in REDUCED or _has(precision, device):
        return ""
    lacks = "this GPU is older than Ampere"
    if device.type == "cpu":
        lacks = f"this processor has neither {' nor '.join(WANTED[precision])}"
    return f"precision: {lacks}, so {precision} is emulated: the results are right, and slower than with float32"


def _has(precision: PrecisionName, device: torch.device) -> bool:
    if device.type == "cuda":
        return precision == "float16" or torch.cuda.get_device_capability(device) >= (8, 0)
    found = torch.cpu.get_capabilities()
    return any(found.get(name, False) for names in WANTED[precision].values() for name in names)
