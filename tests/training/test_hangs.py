"""A worker that computes and gets nowhere hangs; one that waits for it does not. The training loop tells them apart."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from trainers.collectives.endpoints import IndependentEndpoint, SharedMemoryEndpoint
from trainers.parameter_server.endpoints import SharedMemoryStoreEndpoint
from trainers.parameter_server.memory import MemoryPlan
from trainers.spec import TrainSpec
from trainers.training.loop import Ports, TrainingLoop
from trainers.training.messages import GenerationEnd, GenerationStart
from trainers.training.setup import Setup, set_up
from trainers.training.shard_setup import ShardSetup
from trainers.training.step_gate import StepGate
from trainers.training.version_parts import first_part

STUCK = threading.Event()
"""Set while whoever computes is to get nowhere."""


class StuckLayer(nn.Module):
    """Passes on what it is given, unless it is stuck."""

    def forward(self, inputs: Tensor) -> Tensor:
        while STUCK.is_set() and self.training:
            time.sleep(0.005)
        return inputs


def stuck_net(num_classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(StuckLayer(), nn.Flatten(), nn.Linear(64 * in_channels, num_classes))


def spec(algorithm: object) -> TrainSpec:
    fields = {"data": {"name": "digits", "limit": 40}, "model": "tests.training.test_hangs:stuck_net"}
    return TrainSpec.model_validate(fields | {"algorithm": algorithm, "workers": 2, "ps": 1, "batch": 5, "epochs": 1})


class Worker:
    """A training loop in a thread."""

    def __init__(self, setup: Setup, folder: Path, begin: GenerationStart) -> None:
        self.gate, self.ended = StepGate(), list[GenerationEnd]()
        ports = Ports(lambda report: None, lambda dropped: None, lambda version: None, lambda clock: None)
        self.loop = TrainingLoop(setup, folder, begin, self.gate, ports, None)
        self.thread = threading.Thread(target=lambda: self.ended.append(self.loop.train()), daemon=True)

    def join(self) -> str:
        """Whom it missed in the end."""
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.ended[0].lost


def soon(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.005)
    return holds()


def always(holds: Callable[[], bool]) -> bool:
    """For a tenth of a second."""
    found = []
    for _ in range(20):
        found.append(holds())
        time.sleep(0.005)
    return all(found)


@pytest.fixture(autouse=True)
def nobody_is_stuck() -> None:
    STUCK.clear()


def check(workers: list[Worker]) -> None:
    """Worker 1 is held before its first step, in which worker 0 waits for it; then both compute without getting on."""
    first, second = workers
    second.gate.hold()
    for worker in workers:
        worker.thread.start()
    # It may wait for something else first, for a moment.
    assert soon(lambda: first.loop.stepping and always(lambda: first.loop.waiting.is_raised))
    assert always(lambda: not first.loop.computes()), "it waits for the other, inside a step"
    assert not second.loop.computes(), "it has begun none"
    STUCK.set()
    second.gate.release()
    assert soon(second.loop.computes)
    assert always(lambda: second.loop.computes() and not first.loop.computes())
    STUCK.clear()
    assert [worker.join() for worker in workers] == ["", ""]
    assert not any(worker.loop.computes() for worker in workers)


def test_all_reduce(tmp_path: Path) -> None:
    train = spec({"name": "sync"})
    check([Worker(set_up(train, None), tmp_path, GenerationStart(k, SharedMemoryEndpoint(0, k, 2))) for k in range(2)])


def test_parameter_server(tmp_path: Path) -> None:
    train = spec({"name": "sync", "form": "parameter_server"})
    setups = [set_up(train, None) for _ in range(2)]
    layout, start = setups[0].run_layout(), setups[0].begin()[0].buffers
    vectors = {"params": start.params.numpy()} | {name: vector.numpy() for name, vector in start.state.items()}
    endpoint, folder = SharedMemoryStoreEndpoint(2), tmp_path / "shards"
    folder.mkdir()
    shard = ShardSetup(train, layout, 0)
    pieces = shard.pieces(MemoryPlan(folder, 0, 2, replicas=1), endpoint.maps_versions)
    shard.begin(pieces.items(), first_part(layout, 0, vectors), recovers=False)
    server = endpoint.listen(folder, 0, layout.numel, pieces)
    serving = threading.Thread(target=server.serve, daemon=True)
    serving.start()
    try:
        stores = [SharedMemoryStoreEndpoint(2, worker=k) for k in range(2)]
        begins = [GenerationStart(k, IndependentEndpoint(0, k, 2, on_one_node=True), store=stores[k]) for k in range(2)]
        check([Worker(setup, tmp_path, begin) for setup, begin in zip(setups, begins, strict=True)])
    finally:
        server.close()
        serving.join(60)
    assert torch.isfinite(next(iter(pieces.values())).shard.params).all()
