"""Datasets that are read example by example while it trains, by loader processes: images that do not fit in memory,
which are decoded, cropped and mirrored there and normalised here, and objects of the user's own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from trainers import user_code
from trainers.data.batches import EVALUATION, Batch, Collate, Data, Dataset, Plan, Skipped
from trainers.data.config import DataSpec
from trainers.data.delivery import Delivery, data_sent_to, sent_to
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Ragged, Source, StreamedSource, image_tensor
from trainers.data.facts import DataFacts
from trainers.data.images.augmentation import Augmentation
from trainers.data.loading.generators import kept_generators, seed_generators
from trainers.data.loading.processes import Loaded, Loads, PlanLoader
from trainers.data.photographs import example_name, first_example, labels_of, read_example
from trainers.data.reading import Reading, ReadingBoard
from trainers.data.records.objects import Form, ObjectSource, check_example, form_of, stacked
from trainers.data.sources import read_any
from trainers.errors import DataLost, MillraceError, SpecRejected, UserCodeFailed

EXAMPLE, MINIBATCH = 3, 4
"""The streams of random draws of the user's code that reads an example, and of that which makes a minibatch."""


class StreamedDataset(Dataset):
    """A training and a test half, each with loader processes of its own from its first minibatch to `close()`.

    Each process opens the source for itself from the spec, so a user's dataset need not be picklable and no array is
    sent through a pipe. With `loader_processes: 0` the calling thread does the work. Each half runs one plan at a time
    and reads it ahead by up to PREFETCH minibatches per process.
    """

    fits_in_memory = False

    def __init__(self, train: "Half", test: "Half", facts: DataFacts, device: torch.device) -> None:
        self._train, self._test = train, test
        self.num_train, self.num_validation = len(train), test.num_validation
        self.num_test = len(test) - self.num_validation
        self.skipped, self.told = train.left_out
        self.facts = facts
        self._device = device
        self._delivery = Delivery(device)
        self._loaders: dict[bool, PlanLoader] = {}

    def collate_by(self, collate: Callable[[], Collate]) -> None:
        for half in (self._train, self._test):
            if not isinstance(half, ObjectHalf):
                super().collate_by(collate)  # refuses
            else:
                half.collate_by(collate)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        return self._delivered(self._train, plan)

    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        return self._delivered(self._test, ((EVALUATION, examples) for examples in minibatches))

    def close(self) -> None:
        for loader in self._loaders.values():
            loader.close()

    def class_counts(self) -> tuple[int, ...]:
        labels = self._train.labels()
        return () if labels is None else tuple(np.bincount(labels, minlength=self.facts.classes).tolist())

    def reading(self) -> Reading | None:
        under_way = [found for half in (self._train, self._test) if (found := half.board.longest()) is not None]
        return max(under_way, key=lambda found: found.seconds, default=None)

    def _delivered(self, half: "Half", plan: Plan) -> Iterator[Batch]:
        if half.training not in self._loaders:
            self._loaders[half.training] = PlanLoader(half, half.processes, half.seed)
        for loaded in self._loaders[half.training].run(plan):
            weight = self.weigh(loaded.data) if half.training and len(loaded.examples) else None
            with self._delivery.beside():
                data = half.finished(loaded, self._device)
            yield self._delivery.delivered(Batch(data, loaded.epoch, loaded.examples, loaded.skipped, weight))


class Half(Loads, ABC):
    """One half of a dataset for DataLoader: an index is an item of the plan, an element a complete minibatch.

    Only the spec is sent to a loader process; the source is opened there at the first minibatch. What the user's code
    draws from the generators of torch, numpy and Python follows from the seed, the epoch and the example.
    """

    def __init__(self, data: DataSpec, source: Source | ObjectSource, seed: int, training: bool) -> None:
        self.training = training
        self.seed = seed
        # Only a process of Ray's has a way to the object store: blocks of a Ray Dataset are read by the worker itself.
        self.processes = 0 if data.kind == "ray" else data.loader_processes
        self.board = ReadingBoard(self.processes)
        self._data = data
        self._source: Source | ObjectSource | None = source
        self.num_validation = source.num_validation
        self.left_out = (source.skipped, source.told) if isinstance(source, Arrays) else ((), ())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def __len__(self) -> int:
        source = self._opened()
        if isinstance(source, Arrays):
            return len(source.train_labels if self.training else source.test_labels)
        return len(source.train if self.training else source.test)

    def __getitem__(self, item: tuple[int, Int64Array]) -> Loaded | MillraceError:
        epoch, examples = item
        try:
            with kept_generators():
                return self._loaded(epoch, examples)
        except MillraceError as error:
            return error

    def _loaded(self, epoch: int, examples: Int64Array) -> Loaded:
        read, skipped = dict[int, Any](), list[Skipped]()
        for i in map(int, examples):
            try:
                read[i] = self._example(epoch, i)
            except MillraceError as error:
                self._skip(i, error, skipped)
        data = self._minibatch(read, epoch, skipped) if read else self._empty()
        return Loaded(data, epoch, np.array(list(read), dtype=np.int64), tuple(skipped))

    def _skip(self, i: int, error: MillraceError, skipped: list[Skipped]) -> None:
        """Raises the error where the spec wants no example skipped."""
        if self._data.on_error != "skip" or isinstance(error, DataLost):
            raise error
        skipped.append((i, str(error).splitlines()[0]))

    def finished(self, loaded: Loaded, device: torch.device) -> Data:
        """A minibatch, as the model sees it, on a device."""
        return data_sent_to(loaded.data, device)

    @abstractmethod
    def _minibatch(self, read: dict[int, Any], epoch: int, skipped: list[Skipped]) -> Data:
        """The minibatch of examples that were read, at least one, on the CPU. Those that do not fit to the others are
        moved to `skipped`, if they may."""

    def _empty(self) -> Data:
        """A minibatch without examples."""
        return None

    @abstractmethod
    def _checked(self, example: Any, i: int) -> Any:
        """What the source has at i, in the form in which minibatches are made of it. Raises UserCodeFailed."""

    def _example(self, epoch: int, i: int) -> Any:
        self.board.begin(i)
        try:
            seed_generators(self.seed, epoch, i, EXAMPLE)
            return self._checked(self._read(i), i)
        finally:
            self.board.end()

    def _try(self) -> None:
        """What cannot be read in the test half is found before training, too."""
        if self._data.on_error == "fail":
            with kept_generators():
                self._example(EVALUATION, 0)

    def _read(self, i: int) -> Any:
        """Example i as the source has it."""
        source = self._opened()
        if isinstance(source, Arrays):
            images = source.train_images if self.training else source.test_images
            assert not isinstance(images, Ragged)  # these are in memory
            return images[i], (source.train_labels if self.training else source.test_labels)[i]
        return read_example(self._data, source, i, self.training)

    def labels(self) -> Int64Array | None:
        """(N,), where the set tells them without reading its examples. Those that are no class are left out."""
        source = self._opened()
        if isinstance(source, Arrays):
            return source.train_labels if self.training else source.test_labels
        found = labels_of(source.train if self.training else source.test)
        classes = source.num_classes if isinstance(source, StreamedSource) else source.facts.classes
        return None if found is None or not classes else found[(found >= 0) & (found < classes)]

    def _named(self, i: int) -> str:
        return f"{self._data.name}, {example_name(i, self.training, self.num_validation)}"

    def _opened(self) -> Source | ObjectSource:
        if self._source is None:  # in a loader process; its parent has downloaded the data already
            source = read_any(self._data.model_copy(update={"download": False}))
            assert isinstance(source, Arrays | StreamedSource | ObjectSource)
            self._source = source
        return self._source


class ImageHalf(Half):
    """Images with labels: uint8 until they are on the device."""

    def __init__(self, data: DataSpec, source: Source, augmentation: Augmentation, training: bool) -> None:
        super().__init__(data, source, augmentation.seed, training)
        self._augmentation = augmentation
        self._normalisation = source.normalisation
        self._num_classes = source.num_classes
        with kept_generators():
            channels, height, width = self._first(source).shape
        self.image_shape = augmentation.shape(channels, height, width)
        if not training:
            self._try()

    @property
    def facts(self) -> DataFacts:
        """What a model has to fit."""
        normalised = self._normalisation
        return DataFacts(self.image_shape, self._num_classes, mean=normalised.mean, std=normalised.std)

    def finished(self, loaded: Loaded, device: torch.device) -> Data:
        images, labels = loaded.data
        data = self._normalisation(sent_to(images, device)), sent_to(labels, device)
        return self._augmentation.finish(*data, loaded.epoch, loaded.examples) if self.training else data

    def _minibatch(self, read: dict[int, Any], epoch: int, skipped: list[Skipped]) -> Data:
        """uint8 images (B, C, H, W), labels (B,)."""
        images, labels = zip(*read.values(), strict=True)
        if self.training:
            batch = self._augmentation.train(images, epoch, np.array(list(read), dtype=np.int64))
        else:
            batch = self._augmentation.evaluate(images)
        return batch, torch.tensor(labels, dtype=torch.int64)

    def _empty(self) -> Data:
        return torch.empty((0, *self.image_shape), dtype=torch.uint8), torch.empty(0, dtype=torch.int64)

    def _checked(self, example: Any, i: int) -> tuple[torch.Tensor, int]:
        """Image uint8 (C, h, w) and label."""
        image, label = example
        if not 0 <= int(label) < self._num_classes:
            allowed = f"0..{self._num_classes - 1}"
            raise UserCodeFailed(f"{self._data.name}: the label of example {i} is {label}, not in {allowed}")
        pixels = image_tensor(image, self._data.name, self.image_shape[0])
        if self._augmentation.side == 0 and pixels.shape != self.image_shape:
            raise SpecRejected(
                f"{self._data.name}: images have different sizes, as example {i} has; set data.random_resized_crop to "
                "the side to train on"
            )
        return pixels, int(label)

    def _first(self, source: Source) -> torch.Tensor:
        """The first training image, uint8 (C, h, w)."""
        if isinstance(source, Arrays):
            assert not isinstance(source.train_images, Ragged)
            return image_tensor(source.train_images[0], self._data.name)
        return image_tensor(first_example(self._data, source, True)[0], self._data.name)


class ObjectHalf(Half):
    """Examples of any kind, which the task's `collate` makes minibatches of."""

    def __init__(self, data: DataSpec, source: ObjectSource, seed: int, training: bool) -> None:
        super().__init__(data, source, seed, training)
        self._classes = source.facts.classes
        self._collate_of: Callable[[], Collate] | None = None
        self._collate: Collate | None = None
        self._form: Form = []  # of all examples, where those of another are skipped
        if not training:
            self._try()
        if data.on_error == "skip":
            with kept_generators():
                self._form = form_of(first_example(data, source, training))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_collate": None}

    def collate_by(self, collate: Callable[[], Collate]) -> None:
        self._collate_of = collate

    def _minibatch(self, read: dict[int, Any], epoch: int, skipped: list[Skipped]) -> Data:
        first = next(iter(read))
        seed_generators(self.seed, epoch, first, MINIBATCH)
        self.board.begin(first)
        try:
            if self._collate_of is not None:
                return self._collated(read, self._collate_of)
            try:
                return stacked(list(read.values()))
            except (RuntimeError, TypeError, KeyError, ValueError) as error:
                self._drop_odd(read, error, skipped)
            return stacked(list(read.values())) if read else None
        finally:
            self.board.end()

    def _collated(self, read: dict[int, Any], collate_of: Callable[[], Collate]) -> Data:
        self._collate = self._collate or collate_of()
        try:
            return self._collate(list(read.values()))
        except Exception as error:
            raise user_code.failed(f"collate, on {self._named(next(iter(read)))} and others,", error) from error

    def _drop_odd(self, read: dict[int, Any], error: Exception, skipped: list[Skipped]) -> None:
        """Move the examples of another form than the set's to `skipped`. Raises where there are none, or none may."""
        forms = {i: form_of(example) for i, example in read.items()}
        first = next(iter(read))
        wanted = self._form or forms[first]
        odd = [i for i, form in forms.items() if form != wanted]
        for i in odd:
            told = f"{self._named(i)} has other shapes than others, such as example {first}"
            self._skip(i, self._not_stacked(f"{told}: {_told(forms[i])}, not {_told(wanted)}"), skipped)
            del read[i]
        if not odd:
            raise self._not_stacked(f"{self._named(first)} cannot be put into a minibatch: {error}") from error

    def _not_stacked(self, told: str) -> UserCodeFailed:
        return UserCodeFailed(f"{told}; give numbers, arrays or tensors of one shape, or define `collate` of a task")

    def _checked(self, example: Any, i: int) -> Any:
        try:
            check_example(example, self._classes)
        except ValueError as error:
            raise UserCodeFailed(f"{self._named(i)}: {error}") from error
        return example


def _told(form: Form) -> str:
    return ", ".join(f"{path} {shape}".strip() for path, shape in form) or "nothing"
