"""How minibatches come to the device that trains them."""

from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from trainers.data.batches import Batch, Data, mapped, tensors_of
from trainers.data.draws import Int64Array

Scalar = TypeVar("Scalar", bound=np.generic)


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """The same on a device. To a GPU it goes by pinned memory, and nobody waits for it; what is enqueued afterwards on
    the current stream finds it there."""
    return tensor if tensor.device == device else tensor.pin_memory().to(device, non_blocking=True)


def data_sent_to(data: Data, device: torch.device) -> Data:
    """`sent_to` of every tensor in a minibatch."""
    return mapped(data, lambda tensor: sent_to(tensor, device))


class Delivery:
    """Brings minibatches to a device; to a GPU on a stream of its own, so that one is copied, augmented and normalised
    while the step before is computed.

    Two are under way by themselves: a worker is a step ahead of its GPU, and torch keeps the memory of a minibatch,
    pinned or on the GPU, until the stream that uses it is through. No minibatch is taken from the plan before its time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def beside(self) -> AbstractContextManager[object]:
        """What is done inside goes on beside the computation."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def taken(self, array: "np.ndarray[tuple[int, ...], np.dtype[Scalar]]", examples: Int64Array) -> Tensor:
        """The rows of `examples` (B,) of an array, on the device."""
        if self.stream is None:
            return torch.from_numpy(array.take(examples, axis=0))
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        pinned = torch.empty(len(examples), *array.shape[1:], dtype=dtype, pin_memory=True)
        array.take(examples, axis=0, out=pinned.numpy(), mode="clip")  # which needs no copy of `out`; all are in range
        return pinned.to(self.device, non_blocking=True)

    def delivered(self, batch: Batch) -> Batch:
        """A minibatch that was made beside the computation, for what is computed from here on."""
        if self.stream is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_stream(self.stream)
            for tensor in tensors_of(batch.data):
                tensor.record_stream(computing)
        return batch
