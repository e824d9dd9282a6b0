"""The work that every contender does: the same model, examples, minibatches and optimiser."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trainers.spec import DataSpec, ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from trainers.data.batches import Batch

REPOSITORY = Path(__file__).resolve().parents[2]
DIGITS = "benchmarks.measurement.workload:digits28"
NOISE = "benchmarks.measurement.workload:noise224"
NUM_NOISE = 640  # images, 96 MB as uint8
LARGEST_RATE = 3200.0
"""Examples/s of two workers that nothing reaches here; only sizes the jobs when nothing was measured yet."""
SHAKESPEARE = REPOSITORY.parent / "shared" / "data" / "tiny_shakespeare" / "input.txt"
DIGITS_REPEATS = 40  # so that an epoch is about as long as MNIST's


@dataclass(frozen=True)
class Workload:
    """One model, by default `convnet` on 28x28 images; momentum SGD."""

    data: DataSpec
    model: str = "convnet"
    num_classes: int = 10
    image_shape: tuple[int, int, int] = (1, 28, 28)
    minibatch: int = 32
    """Examples a worker and step."""
    workers: int = 2
    lr: float = 0.01
    momentum: float = 0.9
    seed: int = 0
    warmup_steps: int = 25
    """Steps of each worker before the clock starts."""
    seconds: float = 8.0
    """How long one measurement lasts, roughly."""
    our_products: bool = False
    """Whether a peer's fully connected layers multiply as Millrace's workers do, and not as torch does by itself."""
    steps: int | None = None
    """A fixed number of measured steps instead of `seconds`."""
    longest_epoch: int = 50_000
    """Examples; no more than the set has."""
    task: Literal["classification", "language_model"] = "classification"
    sizes: tuple[tuple[str, int], ...] = ()
    """`model.kwargs`."""

    def build_model(self) -> "nn.Module":
        """The model, the same start in every process, in the memory format that is fastest on a CPU for everyone."""
        import torch

        model = self._language_model() if self.task == "language_model" else self._image_model()
        model = model.to(memory_format=torch.channels_last)
        if self.our_products:
            from benchmarks.peers.products import with_our_products

            model = with_our_products(model, next(self.minibatches(0)).data[0])
        return model

    def loss(self, model: "nn.Module", batch: "Batch") -> "Tensor":
        """The mean over the minibatch, as a plain loop of torch has it."""
        from torch.nn import functional

        inputs, targets = batch.data
        outputs = model(inputs)
        return functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))

    def _image_model(self) -> "nn.Module":
        from trainers.models.registry import build_model

        return build_model(ModelSpec(name=self.model), self.num_classes, self.image_shape, seed=self.seed)

    def _language_model(self) -> "nn.Module":
        from trainers.data.datasets import open_dataset
        from trainers.models.registry import build_model_for

        spec = ModelSpec(name=self.model, kwargs=dict(self.sizes))
        with open_dataset(self.data, self.seed) as dataset:
            return build_model_for(spec, dataset.facts, self.seed)

    def minibatches(self, rank: int) -> "Iterator[Batch]":
        """Whole minibatches of one worker, epoch after epoch without end: indexed as uint8, then normalised."""
        from trainers.data.datasets import open_dataset
        from trainers.data.order import Order

        dataset = open_dataset(self.data, self.seed)
        order = Order(dataset.num_train, self.minibatch, self.workers, self.seed)

        def plan() -> "Iterator[tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.int64]]]]":
            for epoch in itertools.count():
                for index in range(rank, order.minibatches, self.workers):
                    if order.size(index) == self.minibatch:
                        yield epoch, order.examples(epoch, index)

        return dataset.batches(plan())


@dataclass(frozen=True)
class Timing:
    """One worker's steady state."""

    steps: int
    seconds: float
    cpu_s: float
    """CPU seconds of this process, all its threads."""


def steady(step: Callable[[], object], work: Workload, agree: Callable[[int], int] = lambda steps: steps) -> Timing:
    """Warm up, agree on a number of steps with the others (which is also the start signal), and time them."""
    half = max(1, work.warmup_steps // 2)
    for _ in range(work.warmup_steps - half):
        step()
    began = time.perf_counter()
    for _ in range(half):
        step()
    steps = agree(work.steps or max(1, round(work.seconds * half / (time.perf_counter() - began))))
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return Timing(steps, time.perf_counter() - began, time.process_time() - cpu)


def find_data(root: Path | None) -> DataSpec:
    """MNIST in torchvision's layout where there is one; otherwise scikit-learn's digits, enlarged."""
    for folder in [root] if root else [REPOSITORY / "data", REPOSITORY.parent / "shared" / "data"]:
        if (folder / "MNIST" / "raw").is_dir():
            return DataSpec(name="mnist", root=str(folder))
    return DataSpec(name=DIGITS)


def data_title(data: DataSpec) -> str:
    """What the report calls the data."""
    return "digits, 8x8 enlarged to 28x28" if data.name == DIGITS else data.name


def digits28(root: str) -> "tuple[Any, Any, Any, Any]":
    """scikit-learn's digits, each pixel three by three, framed to 28x28, repeated: images and labels, twice.

    They come with scikit-learn, so nothing is read from `root`.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.rint(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)
    images = np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))[:, None]
    labels = labels.astype(np.int64)
    return np.tile(images, (DIGITS_REPEATS, 1, 1, 1)), np.tile(labels, DIGITS_REPEATS), images, labels


def noise224(root: str) -> "tuple[Any, Any, Any, Any]":
    """Random colour images of 224x224 in 1000 classes, and labels, twice; nothing is read from `root`."""
    import numpy as np

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (NUM_NOISE, 3, 224, 224), dtype=np.uint8)
    labels = random.integers(0, 1000, NUM_NOISE)
    labels[0] = 999  # so that the set has all classes
    return images, labels, images[:1], labels[:1]


def gpt(seconds: float = 8.0) -> Workload:
    """A GPT of 0.8 M parameters on the characters of a text: Shakespeare where it lies, otherwise our own guide."""
    root = SHAKESPEARE if SHAKESPEARE.is_file() else REPOSITORY / "docs"
    return Workload(
        DataSpec(name="text", root=str(root), tokens="characters", context=64),
        model="gpt",
        minibatch=12,
        seconds=seconds,
        longest_epoch=3000,
        task="language_model",
        sizes=(("layers", 4), ("heads", 4), ("width", 128)),
    )


def alexnet(seconds: float = 8.0, workers: int = 2) -> Workload:
    """torchvision's AlexNet on random images, 61 M parameters, 96 % of them fully connected."""
    return Workload(
        DataSpec(name=NOISE),
        model="alexnet",
        num_classes=1000,
        image_shape=(3, 224, 224),
        workers=workers,
        warmup_steps=2,
        seconds=seconds,
        longest_epoch=NUM_NOISE,
    )
