"""Millrace's worker on a GPU, begun and held by the step: its own loop, gate, transport and reporter, without Ray."""

import tempfile
import threading
from pathlib import Path

import torch

from benchmarks.measurement.gpu_work import GpuWork
from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.spec import TrainSpec
from trainers.training.loop import Ports, TrainingLoop
from trainers.training.messages import GenerationStart
from trainers.training.setup import set_up
from trainers.training.step_gate import StepGate


class HeldGate(StepGate):
    """Lets so many steps begin as it was told, and then stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = 0
        self.ended: torch.cuda.Event | None = None  # when the GPU has finished all that were allowed

    def enter(self) -> bool:
        """False when closed."""
        with self.changed:
            if self.begun == self.allowed:
                self.ended = torch.cuda.Event(enable_timing=True)
                self.ended.record()
                self.changed.notify_all()
            self.changed.wait_for(lambda: self.closed or self.begun < self.allowed)
            self.begun += not self.closed
            return not self.closed

    def allow(self, steps: int) -> torch.cuda.Event:
        """So many more; returns when they are enqueued."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended is not None)
            self.allowed, self.ended = self.allowed + steps, None
            self.changed.notify_all()
            self.changed.wait_for(lambda: self.ended is not None)
            assert self.ended is not None
            return self.ended


class OurWorker:
    """The only worker of a run. Its steps are those of `TrainingLoop`, with reports once a second."""

    def __init__(self, work: GpuWork) -> None:
        self.gate, self.folder = HeldGate(), tempfile.TemporaryDirectory()
        self.setup = set_up(TrainSpec.model_validate(work.spec()), None)
        self.losses: list[float] = []
        ports = Ports(lambda report: self.losses.append(report.metrics.loss), lambda _: None, lambda _: None, print)
        begin = GenerationStart(0, SharedMemoryEndpoint(0, 0, 1))
        self.loop = TrainingLoop(self.setup, Path(self.folder.name), begin, self.gate, ports, None)
        self.thread = threading.Thread(target=self.loop.train, daemon=True)
        self.thread.start()

    def steps(self, count: int) -> torch.cuda.Event:
        """Enqueue so many steps; when the GPU has finished them."""
        return self.gate.allow(count)

    def close(self) -> None:
        """End the loop and let go of its memory."""
        self.gate.close()
        self.thread.join()
        self.folder.cleanup()
