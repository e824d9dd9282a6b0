"""The parameter server of Ray's documentation: one actor holds the weights, the others send it their gradients.

Written anew from the pattern: weights travel as a `state_dict` of torch tensors, gradients as a numpy array a
variable, both through the object store of a Ray with its default settings; the driver only passes references on. A
tuned form beside it sends numpy arrays both ways (one flat buffer, or one a variable), updates with the fused
optimiser, and runs on a Ray without a dashboard whose object store is so small that its pages are soon all warm.
Synchronous: the server applies the sum of one gradient of each worker. Asynchronous: it applies each gradient as it
comes, and the worker goes on with the weights that result.
"""

import logging
import os
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.measurement import proc
from benchmarks.measurement.contender import Measurement
from benchmarks.measurement.processes import alone
from benchmarks.measurement.workload import Workload

STORE_BYTES = 512 * 1024**2  # small, so that its pages are soon all warm
Arrays = list[NDArray[np.float32]]


@dataclass(frozen=True)
class RayConfig:
    """Which form, and how tensors are packed."""

    mode: Literal["sync", "async"]
    tuned: bool = False
    """Whether it departs from the documentation to be faster."""
    flat: bool = False
    """One buffer for all variables; otherwise an array a variable."""

    @property
    def title(self) -> str:
        if not self.tuned:
            return "as documented"
        return "tuned, one flat buffer" if self.flat else "tuned, an array a variable"


def measure(work: Workload, config: RayConfig) -> Measurement:
    """A driver of its own with a Ray of its own."""
    return alone(_drive, work, config)


class Packing:
    """A model's tensors as numpy arrays, and back."""

    def __init__(self, tensors: list[Any], flat: bool) -> None:
        self.tensors, self.flat = tensors, flat

    def out(self) -> Arrays:
        """Copies, since what goes into the object store must not change afterwards."""
        arrays = [t.detach().numpy() for t in self.tensors]
        return [np.concatenate([a.ravel() for a in arrays])] if self.flat else arrays

    def back(self, arrays: Arrays) -> None:
        """Copy into the tensors: arrays from the store are read-only."""
        start = 0
        for i, tensor in enumerate(self.tensors):
            target = tensor.detach().numpy()
            if self.flat:
                target.ravel()[:] = arrays[0][start : start + target.size]
                start += target.size
            else:
                np.copyto(target, arrays[i])


class StateDict:
    """A model's weights as the documentation sends them."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def out(self) -> dict[str, Any]:
        """torch tensors by name."""
        return {name: tensor.cpu() for name, tensor in self.model.state_dict().items()}

    def back(self, weights: dict[str, Any]) -> None:
        """Copy into the model."""
        self.model.load_state_dict(weights)


class Server:
    """Weights and optimiser state."""

    def __init__(self, work: Workload, config: RayConfig) -> None:
        import torch

        torch.set_num_threads(1)
        model = work.build_model()
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        fused = config.tuned or None
        self.optimizer = torch.optim.SGD(parameters, lr=work.lr, momentum=work.momentum, fused=fused)
        self.weights_packed = Packing(parameters, config.flat) if config.tuned else StateDict(model)
        self.gradients_packed = Packing([p.grad for p in parameters], config.flat)

    def weights(self) -> Any:
        """The weights now."""
        return self.weights_packed.out()

    def apply(self, *gradients: Arrays) -> Any:
        """One update with the sum of the gradients; the weights after it."""
        total = gradients[0]
        for other in gradients[1:]:
            total = [np.add(a, b) for a, b in zip(total, other, strict=True)]
        self.gradients_packed.back(total)
        self.optimizer.step()
        return self.weights_packed.out()

    def pid(self) -> int:
        return os.getpid()


class Worker:
    """Draws minibatches and computes gradients."""

    def __init__(self, work: Workload, rank: int, config: RayConfig) -> None:
        import torch

        torch.set_num_threads(1)
        self.model, self.batches, self.flat = work.build_model(), work.minibatches(rank), config.flat
        self.loss = work.loss
        self.parameters = list(self.model.parameters())
        self.weights_packed = Packing(self.parameters, config.flat) if config.tuned else StateDict(self.model)

    def gradients(self, weights: Any) -> Arrays:
        """The gradient of the next minibatch at these weights."""

        self.weights_packed.back(weights)
        batch = next(self.batches)
        self.model.zero_grad()
        self.loss(self.model, batch).backward()  # type: ignore[no-untyped-call]
        return Packing([p.grad for p in self.parameters], self.flat).out()

    def pid(self) -> int:
        return os.getpid()


def _drive(work: Workload, config: RayConfig) -> Measurement:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    import ray

    ray.init(
        address="local",
        num_cpus=work.workers + 1,
        logging_level=logging.ERROR,
        log_to_driver=False,
        **({"include_dashboard": False, "object_store_memory": STORE_BYTES} if config.tuned else {}),
    )
    try:
        server = ray.remote(num_cpus=1)(Server).remote(work, config)
        workers = [ray.remote(num_cpus=1)(Worker).remote(work, r, config) for r in range(work.workers)]
        actors: list[Any] = [server, *workers]
        pids = ray.get([actor.pid.remote() for actor in actors])
        loop = _Synchronous(server, workers) if config.mode == "sync" else _Asynchronous(server, workers)
        began = time.perf_counter()
        loop.run(work.warmup_steps * work.workers)
        per_s = work.warmup_steps * work.workers / (time.perf_counter() - began)
        minibatches = work.steps * work.workers if work.steps else round(work.seconds * per_s)
        began, cpu = time.perf_counter(), sum(map(proc.cpu_seconds, pids))
        done = loop.run(minibatches)
        seconds = time.perf_counter() - began
        return Measurement(done * work.minibatch / seconds, (sum(map(proc.cpu_seconds, pids)) - cpu) / done)
    finally:
        ray.shutdown()


class _Synchronous:
    """All workers compute at the same weights; at most two steps are under way, so that the store stays small."""

    def __init__(self, server: Any, workers: list[Any]) -> None:
        self.server, self.workers = server, workers
        self.weights = server.weights.remote()

    def run(self, minibatches: int) -> int:
        import ray

        done = 0
        while done < minibatches:
            previous = self.weights
            self.weights = self.server.apply.remote(*[w.gradients.remote(previous) for w in self.workers])
            ray.wait([previous], fetch_local=False)
            done += len(self.workers)
        ray.wait([self.weights], fetch_local=False)
        return done


class _Asynchronous:
    """Each worker goes on as soon as the server has taken its own gradient."""

    def __init__(self, server: Any, workers: list[Any]) -> None:
        self.server = server
        weights = server.weights.remote()
        self.pending = {w.gradients.remote(weights): w for w in workers}

    def run(self, minibatches: int) -> int:
        import ray

        for _ in range(minibatches):
            (ready,), _ = ray.wait(list(self.pending), num_returns=1, fetch_local=False)
            worker = self.pending.pop(ready)
            self.pending[worker.gradients.remote(self.server.apply.remote(ready))] = worker
        return minibatches
