"""Workers that share one GPU, each a process of its own, without Ray."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.spec import TrainSpec
from trainers.training.loop import Ports, TrainingLoop
from trainers.training.messages import GenerationStart, WorkerReport
from trainers.training.setup import Setup, set_up
from trainers.training.step_gate import StepGate

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as in the workers

DIGITS = {
    "data": {"name": "digits", "limit": 203, "random_crop": 1, "horizontal_flip": True},
    "model": "tests.gpu.nets:small_net",
    "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
    "batch": 7,
    "epochs": 2,
    "seed": 3,
    "device": "cuda",
}


def gpu_spec(count: int = 1, virtual: int = 0, **fields: Any) -> TrainSpec:
    """A spec whose workers share one GPU."""
    workers = {"count": count, "virtual": virtual or count, "gpus": 1 / count}
    return TrainSpec.model_validate(DIGITS | {"workers": workers} | fields)


@dataclass(frozen=True)
class Trained:
    """What rank 0 has in the end, on the CPU."""

    params: Tensor  # (P,)
    rows: Tensor  # (V, width) batch-norm buffers
    loss: float
    """Of all steps of this worker, per example."""


def train_alone(spec: TrainSpec, folder: Path, rank: int = 0, size: int = 1) -> Trained:
    """One worker of `size`, in this process."""
    folder.mkdir(parents=True, exist_ok=True)
    reports: list[WorkerReport] = []
    setup, gate = set_up(spec, None), StepGate()
    gate.release(None)
    ports = Ports(reports.append, lambda _: None, lambda _: None, lambda _: None)
    loop = TrainingLoop(setup, folder, GenerationStart(rank, SharedMemoryEndpoint(0, rank, size)), gate, ports, None)
    end = loop.train()
    assert not end.lost, end.lost
    assert loop.version is not None
    examples = sum(report.metrics.examples for report in reports)
    loss = sum(report.metrics.loss for report in reports) / max(examples, 1)
    return Trained(loop.version.whole.params.cpu(), loop.version.rows.cpu(), loss)


def train_together(spec: TrainSpec, folder: Path) -> Trained:
    """All workers of a spec, each in a process of its own; what the first of them has."""
    size = spec.workers.count
    with ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _one_thread) as processes:
        futures = [processes.submit(train_alone, spec, folder, rank, size) for rank in range(size)]
        first, *_ = [future.result() for future in futures]
    return first


def placed(model: nn.Module, setup: Setup) -> nn.Module:
    """The model on the device of a run, its parameters where that has them: the libraries choose some kernels by the
    addresses of their operands, and other kernels give other bits."""
    device, layout = setup.replica.device, setup.layout
    model = model.to(device)
    views = layout.named(torch.zeros(layout.numel, device=device))
    for name, parameter in model.named_parameters():
        views[name].copy_(parameter.data)
        parameter.data = views[name]
    return model


def _one_thread() -> None:
    torch.set_num_threads(1)
