"""Datasets that fit in memory: minibatches are copied from one uint8 array in the calling thread."""

from collections.abc import Iterator

import numpy as np
import torch

from trainers.data.batches import EVALUATION, Batch, Dataset, Plan
from trainers.data.delivery import Delivery, sent_to
from trainers.data.draws import Int64Array
from trainers.data.examples import Arrays, Ragged, UInt8Array
from trainers.data.facts import DataFacts
from trainers.data.images.augmentation import Augmentation, Images


class MemoryDataset(Dataset):
    """A dataset of arrays, which are private or mapped from the node's shared memory."""

    fits_in_memory = True

    def __init__(self, arrays: Arrays, augmentation: Augmentation, device: torch.device) -> None:
        self.num_train = len(arrays.train_labels)
        self.num_validation = arrays.num_validation
        self.skipped, self.told = arrays.skipped, arrays.told
        self.num_test = len(arrays.test_labels) - arrays.num_validation
        inputs, normalised = augmentation.shape(*arrays.image_shape), arrays.normalisation
        self.facts = DataFacts(inputs, arrays.num_classes, mean=normalised.mean, std=normalised.std)
        self._arrays: Arrays | None = arrays
        self._augmentation = augmentation
        self._device = device
        self._delivery = Delivery(device)

    def batches(self, plan: Plan) -> Iterator[Batch]:
        for epoch, examples in plan:
            arrays = self._opened()
            if not len(examples):  # the last minibatch of an epoch may leave nothing for a virtual worker
                yield self._empty(epoch, examples)
                continue
            with self._delivery.beside():
                pixels, labels = self._training(arrays, examples)
                images = sent_to(self._augmentation.train(pixels, epoch, examples), self._device)
                data = arrays.normalisation(images), self._on_device(labels)
                batch = Batch(self._augmentation.finish(*data, epoch, examples), epoch, examples)
            yield self._delivery.delivered(batch)

    def _evaluated(self, minibatches: Iterator[Int64Array]) -> Iterator[Batch]:
        for examples in minibatches:
            arrays = self._opened()
            with self._delivery.beside():
                images = self._augmentation.evaluate(self._taken(arrays.test_images, examples))
                labels = self._delivery.taken(arrays.test_labels, examples)
                normalised = arrays.normalisation(sent_to(images, self._device))
            yield self._delivery.delivered(Batch((normalised, labels), EVALUATION, examples))

    def class_counts(self) -> tuple[int, ...]:
        return tuple(np.bincount(self._opened().train_labels, minlength=self.facts.classes).tolist())

    def close(self) -> None:
        self._arrays = None

    def _training(self, arrays: Arrays, examples: Int64Array) -> tuple[Images, Int64Array]:
        """Copies of the images and labels (B,) of training examples."""
        return self._taken(arrays.train_images, examples), arrays.train_labels.take(examples)

    def _taken(self, images: UInt8Array | Ragged, examples: Int64Array) -> Images:
        """Copies of these images, on the device if they all have one size; others go there when they have."""
        return images.take(examples) if isinstance(images, Ragged) else self._delivery.taken(images, examples)

    def _empty(self, epoch: int, examples: Int64Array) -> Batch:
        images = torch.empty(0, *self.facts.inputs, device=self._device)
        return Batch((images, torch.empty(0, dtype=torch.int64, device=self._device)), epoch, examples)

    def _opened(self) -> Arrays:
        assert self._arrays is not None, "a minibatch was asked of a dataset after close()"
        return self._arrays

    def _on_device(self, array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> torch.Tensor:
        return sent_to(torch.from_numpy(array), self._device)
