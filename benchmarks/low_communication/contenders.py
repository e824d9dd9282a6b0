"""Who trains towards a target, on what, and with which rates."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.measurement.workload import REPOSITORY
from trainers.spec import TrainSpec

DIGITS = "benchmarks.low_communication.contenders:digits"
REPEATS = 20  # so that the end of an epoch, which ends rounds too, comes seldom
ROUND = 20
"""H: steps between two exchanges."""
EVALUATED = 2 * ROUND
"""Steps between two evaluations: seldom, since each gathers the state of all workers over the link."""
GROUPS = 2
REPORT_S = 0.25  # updates of asynchronous workers are counted as they report
SYNC = "sync"
DataName = Literal["digits", "text"]


@dataclass(frozen=True)
class Task:
    """The same model, examples and target for every contender."""

    data: DataName
    target: float
    """Of `metric`, on examples that nobody trains."""
    metric: Literal["test_accuracy", "test_loss"]
    batch: int
    """Examples of a worker's minibatch."""
    examples: int
    """After which a run ends that has not reached the target."""
    lr: float
    """Of AdamW, for the contenders that RATES does not name."""
    root: str = "."
    """Of the text: a file, or a folder of them."""

    @property
    def title(self) -> str:
        """With the target."""
        aim = f"{self.target:.1%} of the test images" if self.data == "digits" else f"a loss of {self.target:g}"
        return f"{self.data}, to {aim}"

    def is_reached(self, value: float) -> bool:
        """Whether an evaluation is as good as the target."""
        return value >= self.target if self.metric == "test_accuracy" else value <= self.target

    def best(self, values: list[float]) -> float:
        """Of evaluations."""
        return max(values) if self.metric == "test_accuracy" else min(values)

    def sections(self) -> dict[str, Any]:
        """What the spec says of model and data."""
        if self.data == "digits":
            return {"model": "lenet5", "data": DIGITS}
        return {
            "task": "language_model",
            "model": {"name": "gpt", "kwargs": {"layers": 2, "heads": 4, "width": 64}},
            "data": {"name": "text", "root": self.root, "tokens": "characters", "context": 64},
        }


def write_guide(path: Path) -> None:
    """A text that everyone has: the pages of this repository's guide, one after the other."""
    pages = sorted((REPOSITORY / "docs").rglob("*.md"))
    path.write_text("\n".join(page.read_text() for page in pages))


def task_of(data: DataName, text: Path, target: float | None = None) -> Task:
    """text: a file, or a folder of such, for language models."""
    if data == "digits":
        return Task("digits", target or 0.97, "test_accuracy", batch=16, examples=120_000, lr=0.002)
    return Task("text", target or 2.4, "test_loss", batch=8, examples=40_000, lr=0.004, root=str(text.resolve()))


@dataclass(frozen=True)
class Contender:
    """What a spec says besides the task."""

    algorithm: dict[str, Any]
    compress: dict[str, Any] | None = None
    pushed_steps: int | None = None
    """Of an asynchronous algorithm, whose updates are pushes: minibatches of one. None: an update is a step of all."""

    def updates(self, workers: int) -> int:
        """In which all workers together train as much as in EVALUATED steps of all."""
        return EVALUATED if self.pushed_steps is None else max(1, EVALUATED * workers // self.pushed_steps)


CONTENDERS: dict[str, Contender] = {
    SYNC: Contender({"name": "sync"}),
    "sync, powersgd 4": Contender({"name": "sync"}, {"powersgd": 4}),
    "downpour": Contender({"name": "downpour", "max_staleness": 4}, pushed_steps=1),
    "parallel_sgd": Contender({"name": "parallel_sgd", "average_every": ROUND, "shuffle": "none"}),
    "diloco": Contender({"name": "diloco", "average_every": ROUND}),
    "diloco, streaming": Contender(
        {"name": "diloco", "average_every": ROUND, "fragments": 2, "delay": 5, "alpha": 0.5}
    ),
    "downpour, push: delta": Contender(
        {"name": "downpour", "push": "delta", "steps": ROUND, "max_staleness": 2}, pushed_steps=ROUND
    ),
}
RATES: dict[tuple[str, str], float] = {}
"""Of AdamW by contender and data, where it is not the task's."""


def spec_of(name: str, task: Task, workers: int, seed: int) -> TrainSpec:
    """A run of all workers, of which each group has as many; shards have no second copy, so that bytes are those of the
    algorithm."""
    contender = CONTENDERS[name]
    return TrainSpec.model_validate(
        {
            **task.sections(),
            "workers": {"count": workers, "threads": 1},
            "algorithm": contender.algorithm,
            "compress": contender.compress,
            "batch": task.batch,
            "optimizer": {"name": "adamw", "lr": RATES.get((name, task.data), task.lr)},
            "ps": {"shards": GROUPS, "replicas": 1},
            "evaluate": {"every_epochs": 0, "every_steps": contender.updates(workers)},
            "checkpoint": {"every_epochs": 0},
            "epochs": 1000,
            "max_examples": task.examples,
            "seed": seed,
            "report_every_s": REPORT_S,
        }
    )


def digits(root: str) -> "tuple[Any, Any, Any, Any]":
    """scikit-learn's digits, each pixel three by three, framed to 28x28: images and labels, for training and for the
    test, which has every fifth of them. Nothing is read from `root`."""
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[:, None]
    labels, tests = labels.astype(np.int64), np.arange(len(labels)) % 5 == 0
    train = np.tile(images[~tests], (REPEATS, 1, 1, 1)), np.tile(labels[~tests], REPEATS)
    return *train, images[tests], labels[tests]
