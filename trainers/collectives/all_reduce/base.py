"""What every all-reduce algorithm is: a reduce-scatter, then an all-gather."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from trainers.collectives.messages import Messages


@dataclass(frozen=True)
class AllReduceCost:
    """What an all-reduce of b bytes costs the worker that has most to do."""

    steps: int
    """Communication steps."""
    vectors: float
    """Bytes sent, in units of b."""


@dataclass(frozen=True)
class AllReduce:
    """Both halves take a vector (n,) float32 of the same n on every worker, and cut it alike.

    Between the halves each worker may change its part of the sum, and may gather the parts of another vector than the
    one that was summed: an update of one's own part of the parameters, then the gathering of the parameters, moves the
    bytes of an all-reduce of the gradients and computes each update once.
    """

    name: str
    reduce_scatter: Callable[[Messages, Tensor], slice]
    """Sum a vector over the workers; the result is the part of it that holds the sum on this one."""
    all_gather: Callable[[Messages, Tensor], None]
    """Complete a vector of which each worker has that part."""
    cost: Callable[[int], AllReduceCost]
    """By the number of workers."""

    def __call__(self, messages: Messages, vector: Tensor) -> None:
        """Replace a vector by its sum over the workers, the same bits on each."""
        self.reduce_scatter(messages, vector)
        self.all_gather(messages, vector)


def numel(span: slice) -> int:
    """Elements in a slice with both ends."""
    return int(span.stop) - int(span.start)
