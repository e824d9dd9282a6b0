"""Bare PyTorch on a GPU, as one would write it with care: pinned memory, copies on a stream of their own, the fused
optimiser, and no wait for the GPU anywhere."""

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812

from benchmarks.measurement import gpu_work
from benchmarks.measurement.gpu_work import GpuWork
from trainers.data.examples import measured
from trainers.models.config import ModelSpec
from trainers.models.registry import build_model

GPU = torch.device("cuda", 0)


class BareLoop:
    """One model, its optimiser, and its images in the memory of the host."""

    def __init__(self, work: GpuWork) -> None:
        self.work = work
        self.images, self.labels, *_ = getattr(gpu_work, work.data.partition(":")[2])()
        shape, classes = self.images.shape[1:], int(self.labels.max()) + 1
        model = build_model(ModelSpec(name=work.model), classes, shape, seed=0)
        self.model = model.to(GPU, memory_format=torch.channels_last).train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=work.lr, momentum=0.9, weight_decay=0.0001, fused=True
        )
        normalisation = measured(self.images)
        self.mean, self.std = (
            torch.tensor(v, device=GPU).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std)
        )
        self.stream, self.draws = torch.cuda.Stream(GPU), np.random.default_rng(1)
        self.order = np.empty(0, dtype=np.int64)
        self.following = self._fetched()
        self.before = torch.cuda.Event(blocking=True)  # of the last step but one

    def steps(self, count: int) -> torch.cuda.Event:
        """Enqueue so many steps; when the GPU has finished them."""
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            for _ in range(self.work.virtual):
                images, labels = self._next()
                loss = F.cross_entropy(self.model(images), labels) / self.work.virtual
                loss.backward()
                self.following = self._fetched()
            self.optimizer.step()
            self.before.synchronize()  # a step ahead of the GPU is enough; more would pile up pinned memory
            self.before = torch.cuda.Event(blocking=True)
            self.before.record()
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        return ended

    def _next(self) -> tuple[torch.Tensor, torch.Tensor]:
        torch.cuda.current_stream().wait_stream(self.stream)
        images, labels = self.following
        images.record_stream(torch.cuda.current_stream())
        labels.record_stream(torch.cuda.current_stream())
        return images, labels

    def _fetched(self) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.order) < self.work.minibatch:
            self.order = self.draws.permutation(len(self.labels))
        chosen, self.order = np.split(self.order, [self.work.minibatch])
        pinned = torch.empty(len(chosen), *self.images.shape[1:], dtype=torch.uint8, pin_memory=True)
        self.images.take(chosen, axis=0, out=pinned.numpy(), mode="clip")
        labels = torch.from_numpy(self.labels.take(chosen)).pin_memory()
        with torch.cuda.stream(self.stream):
            images = pinned.to(GPU, non_blocking=True).float().div_(255).sub_(self.mean).div_(self.std)
            return images, labels.to(GPU, non_blocking=True)
