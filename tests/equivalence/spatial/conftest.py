"""Memory that nobody has written holds no zeros here, as it may in a run."""

from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
import torch
from torch import Tensor

from trainers.algorithms.spatial import exchange


@pytest.fixture(scope="package", autouse=True)
def _unwritten() -> Iterator[None]:
    empty = exchange._empty

    def unwritten(shape: Sequence[int], like: Tensor, layout: torch.memory_format) -> Tensor:
        return empty(shape, like, layout).fill_(torch.nan)

    with mock.patch.object(exchange, "_empty", unwritten):
        yield
