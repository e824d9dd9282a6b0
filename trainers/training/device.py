"""The device on which a process computes, and what holds of a GPU's arithmetic."""

from pathlib import Path

import torch

from trainers.errors import SpecRejected
from trainers.models.passes.deterministic import ask_for_deterministic_kernels
from trainers.spec import TrainSpec


def choose_device(spec: TrainSpec) -> torch.device:
    """Where the model computes. On a GPU the kernels are from here on those that give the same bits each time; where
    there is none, torch warns, as it does where the environment has no CUBLAS_WORKSPACE_CONFIG.

    Raises:
        SpecRejected: A GPU is asked for and there is none.
    """
    wants = spec.device == "cuda" or (spec.device == "auto" and spec.workers.gpus > 0)
    if wants and not torch.cuda.is_available():
        raise SpecRejected("device: there is no GPU on this worker's node; set device: cpu and workers.gpus: 0")
    if not wants:
        return torch.device("cpu")
    ask_for_deterministic_kernels()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = spec.precision == "tf32"
    return torch.device("cuda", 0)  # Ray shows a worker only the GPUs that are its own


def place_name(device: torch.device) -> str:
    """`cpu`, or which GPU it is: two workers of a node have the same name only if they share one."""
    return "cpu" if device.type == "cpu" else f"cuda {torch.cuda.get_device_properties(device).uuid}"


def peak_bytes() -> tuple[int, int]:
    """The most memory that this process has had so far: resident, with what it shares; and allocated by torch on a GPU,
    0 where it uses none."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident = int(status["VmHWM"].split()[0]) * 1024
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    gpus = range(torch.cuda.device_count()) if is_used else range(0)
    return resident, max((torch.cuda.max_memory_allocated(gpu) for gpu in gpus), default=0)
