"""The network, the spec and the comparisons of the hybrid tests."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.contracts.groups import Groups, rendezvous_for
from tests.equivalence.harness import Run, digits_spec, run_all_reduce, serial, step_batches
from trainers.collectives.protocol import Collectives
from trainers.optim.buffers import Buffers
from trainers.spec import TrainSpec
from trainers.training.work import synchronous

SCHEMES = ("a", "b", "c", "bc")


class Net(nn.Module):
    """Batch norm in the backbone, dropout in the backbone and in the head, layers of 33 and 17 units."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.2), nn.Flatten()
        )
        self.head = nn.Sequential(
            nn.Linear(64, 33),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(33, 17),
            nn.Tanh(),
            nn.Dropout(0.3),
            nn.Linear(17, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def net(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Net()


def spec(virtual: int, count: int, algorithm: dict[str, object] | None = None, **more: object) -> TrainSpec:
    """24 steps of 5 virtual workers with 7 examples each; the last step of an epoch has 28 examples for all of them."""
    fields = {
        "algorithm": {"name": "hybrid"} | (algorithm or {}),
        "workers": {"count": count, "virtual": virtual},
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 0.001},
        "data": {"name": "digits", "limit": 203, "random_crop": 1, "horizontal_flip": True, "random_erasing": {}},
        "epochs": 4,
    }
    return digits_spec(fields | more)


@cache
def serial_params(virtual: int, loss: str) -> Tensor:
    run = Run(spec(virtual, 1, loss=loss), net)
    return serial(run, step_batches(run), "mean")


def distance(found: Tensor, expected: Tensor) -> float:
    """Relative."""
    return float((found - expected).norm() / expected.norm())


def vectors(version: Buffers) -> list[Tensor]:
    return [version.params, *version.state.values()]


def assert_same_bits_at_once(run: Run, kind: str, folder: Path) -> None:
    """Three workers that step at the same time, on a real transport, come to the bits of those that take turns on the
    local one; and each has the whole of its newest version by itself."""
    contexts = [run.context() for _ in range(3)]  # made here, since threads share torch's generator
    works = [list(synchronous(run.dataset, run.order, run.ranks(rank, 3), 1)) for rank in range(3)]

    def body(collectives: Collectives) -> list[Tensor]:
        algorithm = run.spec.algorithm.build(replace(contexts[collectives.rank], collectives=collectives))
        for work in works[collectives.rank]:
            algorithm.step(work)
        gathered = vectors(algorithm.gather_state())
        assert all(map(torch.equal, gathered, vectors(algorithm.local_state())))
        return gathered

    with rendezvous_for(kind) as rendezvous:
        found = Groups(kind, folder, rendezvous).run(3, body)
    elsewhere = run_all_reduce(run).buffers
    assert elsewhere is not None
    for state in found:
        assert all(map(torch.equal, state, vectors(elsewhere)))
