"""One worker of a run on images of 4,000 x 4,000 pixels, in a process whose memory may be limited.

`python -m tests.equivalence.spatial.large RANK SIZE FOLDER LIMIT` trains one step, of one image a virtual worker, of
which there are four, and prints the bytes that training took at most beyond those that the process had taken before.
LIMIT: how many they may be; 0: as many as there are.
"""

import json
import resource
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.spec import TrainSpec
from trainers.training.loop import Ports, TrainingLoop
from trainers.training.messages import GenerationStart
from trainers.training.setup import check, set_up
from trainers.training.step_gate import StepGate

MODULE = "tests.equivalence.spatial.large"
SIDE, IMAGES = 4000, 4
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def images(root: str) -> Arrays:
    """Noise, with labels."""
    draw = np.random.default_rng(0)
    found = draw.integers(0, 256, (IMAGES + 1, 3, SIDE, SIDE), dtype=np.uint8)
    labels = np.arange(IMAGES + 1) % IMAGES
    return found[:IMAGES], labels[:IMAGES], found[IMAGES:], labels[IMAGES:]


class Wide(nn.Module):
    """Maps as large as the images, then poolings, and a fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(4),
            nn.Conv2d(8, 8, 5, padding=2), nn.ReLU(inplace=True), nn.AvgPool2d(20),
        )  # fmt: skip
        self.fc = nn.Linear(8 * 50 * 50, IMAGES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x).flatten(1))


def wide(num_classes: int, in_channels: int) -> nn.Module:
    return Wide()


def spec(size: int) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "algorithm": "spatial",
            "model": f"{MODULE}:wide",
            "data": f"{MODULE}:images",
            "workers": {"count": size, "virtual": IMAGES},
            "batch": 1,
            "epochs": 1,
            "optimizer": {"name": "sgd", "lr": 0.01},
        }
    )


def taken(name: str) -> int:
    """Of this process's memory, in bytes, as Linux counts it: `VmRSS`, `VmHWM`, `VmData`."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def main(rank: int, size: int, folder: Path, limit: int) -> None:
    """See above."""
    setup, gate = set_up(spec(size), folder / "data"), StepGate()
    check(setup)
    gate.release(None)
    ports = Ports(lambda _: None, lambda _: None, lambda _: None, lambda _: None)
    loop = TrainingLoop(setup, folder, GenerationStart(rank, SharedMemoryEndpoint(0, rank, size)), gate, ports, None)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = taken("VmRSS")
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (taken("VmData") + limit, resource.RLIM_INFINITY))
    end = loop.train()
    assert not end.lost, end.lost
    assert loop.version is not None
    if rank == 0:
        np.save(folder / "params.npy", loop.version.whole.params.cpu().numpy())
    print(json.dumps({"peak_bytes": taken("VmHWM") - before}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
