"""Bare PyTorch on a GPU, as one would write it with care: pinned memory, copies on a stream of their own, autocast, the
model compiled with its loss, the fused optimiser, and no wait for the GPU anywhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from benchmarks.measurement import gpu_work
from benchmarks.measurement.gpu_work import GPT, GpuWork
from trainers.data.examples import measured
from trainers.models.config import ModelSpec
from trainers.models.networks.gpt import Gpt
from trainers.models.passes.deterministic import strictly
from trainers.models.registry import build_model

GPU = torch.device("cuda", 0)


class BareLoop:
    """One model, its optimiser, and its examples in the memory of the host."""

    def __init__(self, work: GpuWork) -> None:
        self.is_strict = work.is_text  # attention takes its deterministic form only so; pooling would raise
        self.work, self.source = work, Tokens() if work.is_text else Images(work.data.partition(":")[2])
        model = self.source.model(work).to(GPU).train()
        self.model, self.optimizer = model, self.source.optimizer(model, work.lr)
        self.cost: Callable[[Tensor, Tensor], Tensor] = lambda x, y: self.source.loss(self.model(x), y)
        if work.compiles:
            self.cost = torch.compile(self.cost)
        self.stream, self.draws = torch.cuda.Stream(GPU), np.random.default_rng(1)
        self.order = np.empty(0, dtype=np.int64)
        self.following = self._fetched()
        self.before = torch.cuda.Event(blocking=True)  # of the last step but one

    def steps(self, count: int) -> torch.cuda.Event:
        """Enqueue so many steps; when the GPU has finished them."""
        rounded: Any = nullcontext()
        if self.work.precision == "bfloat16":
            rounded = torch.autocast("cuda", torch.bfloat16)
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            for _ in range(self.work.virtual):
                inputs, targets = self._next()
                with strictly(self.is_strict):
                    with rounded:
                        loss = self.cost(inputs, targets) / self.work.virtual
                    loss.backward()
                self.following = self._fetched()
            self.optimizer.step()
            self.before.synchronize()  # a step ahead of the GPU is enough; more would pile up pinned memory
            self.before = torch.cuda.Event(blocking=True)
            self.before.record()
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        return ended

    def _next(self) -> tuple[Tensor, Tensor]:
        torch.cuda.current_stream().wait_stream(self.stream)
        for part in self.following:
            part.record_stream(torch.cuda.current_stream())
        return self.following

    def _fetched(self) -> tuple[Tensor, Tensor]:
        if len(self.order) < self.work.minibatch:
            self.order = self.draws.permutation(self.source.count)
        chosen, self.order = np.split(self.order, [self.work.minibatch])
        return self.source.fetched(chosen, self.stream)


class FreeLoop(BareLoop):
    """The same with whichever kernels PyTorch finds fastest, whose bits may differ from run to run."""

    def __init__(self, work: GpuWork) -> None:
        with free_kernels():
            super().__init__(work)
        self.is_strict = False

    def steps(self, count: int) -> torch.cuda.Event:
        """As of any other loop."""
        with free_kernels():
            return super().steps(count)


@contextmanager
def free_kernels() -> Iterator[None]:
    """PyTorch as it is by default, and cuDNN with a measurement of each shape."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = False, True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=True)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


class Images:
    """Images as uint8 with labels; momentum SGD."""

    def __init__(self, function: str) -> None:
        self.images, self.labels, *_ = getattr(gpu_work, function)()
        self.count = len(self.labels)
        normalisation = measured(self.images)
        self.mean, self.std = (
            torch.tensor(v, device=GPU).view(-1, 1, 1) for v in (normalisation.mean, normalisation.std)
        )

    def model(self, work: GpuWork) -> torch.nn.Module:
        """As Millrace's, in `channels_last`."""
        shape, classes = self.images.shape[1:], int(self.labels.max()) + 1
        model = build_model(ModelSpec(name=work.model), classes, shape, seed=0)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]

    def optimizer(self, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        """In its fused form."""
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=0.0001, fused=True)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over a minibatch."""
        return F.cross_entropy(outputs, labels)

    def fetched(self, chosen: np.ndarray[Any, Any], stream: torch.cuda.Stream) -> tuple[Tensor, Tensor]:
        """Normalised images and labels on the GPU, once `stream` is so far."""
        pinned = torch.empty(len(chosen), *self.images.shape[1:], dtype=torch.uint8, pin_memory=True)
        self.images.take(chosen, axis=0, out=pinned.numpy(), mode="clip")
        labels = torch.from_numpy(self.labels.take(chosen)).pin_memory()
        with torch.cuda.stream(stream):
            images = pinned.to(GPU, non_blocking=True).float().div_(255).sub_(self.mean).div_(self.std)
            return images, labels.to(GPU, non_blocking=True)


class Tokens:
    """Windows of tokens; AdamW."""

    def __init__(self) -> None:
        self.windows, _ = gpu_work.windows()
        self.count = len(self.windows)

    def model(self, work: GpuWork) -> torch.nn.Module:
        """The same network as Millrace's."""
        del work
        return Gpt(self.windows.vocabulary, self.windows.context, **GPT)

    def optimizer(self, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
        """In its fused form, with weight decay of matrices only."""
        matrices = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=lr, fused=True)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over the tokens of a minibatch."""
        return F.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten())

    def fetched(self, chosen: np.ndarray[Any, Any], stream: torch.cuda.Stream) -> tuple[Tensor, Tensor]:
        """Windows with their targets on the GPU, once `stream` is so far."""
        tokens = self.windows.tokens[torch.from_numpy(chosen)].pin_memory()
        with torch.cuda.stream(stream):
            there = tokens.to(GPU, non_blocking=True)
            return there[:, :-1].contiguous(), there[:, 1:].contiguous()
