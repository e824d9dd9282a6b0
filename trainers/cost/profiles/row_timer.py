"""What a worker takes for the layers that `spatial` divides, where it has a part of the rows: of half of them more than
half, since rows are copied to lie beside their neighbours', whose gradients they get."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.algorithms.spatial.exchange import RowExchange
from trainers.algorithms.spatial.layers import RowLayer, RowModel
from trainers.collectives.protocol import Collectives
from trainers.cost.timing import wait_for
from trainers.links.handle import Handle, done
from trainers.links.meter import Meter


def row_seconds(model: RowModel, images: Tensor, parts: int, repeats: int) -> float:
    """Forward and backward, of rows of one of so many workers that has neighbours on both sides if any has; the median.
    Of several workers, with the copies of a run's own exchange; nothing travels, and batch norms are torch's.

    images: (N, C, H, W), all of them. The gradients of parameters stay where autograd puts them.
    """
    if parts == 1:
        return _median_s(lambda: model.rows(images, _whole, _normalised), repeats, images.device)
    me = parts // 2
    collectives = cast(Collectives, _Neighbours(me, parts, images.device))
    exchange = RowExchange(collectives, [len(images) if k == me else 0 for k in range(parts)])

    def forward() -> Tensor:
        rows = model.rows(exchange.by_rows(images), exchange.through, _normalised)
        return exchange.by_examples(rows, model.features_height)

    return _median_s(forward, repeats, images.device)


class _Neighbours:
    """Collectives of a worker whose neighbours send nothing, and at once."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device, self.meter = rank, size, device, Meter()

    def all_to_all(self, send: Sequence[Tensor], receive: Sequence[Tensor]) -> Handle[None]:
        for into in receive:
            into.zero_()
        return done(None)


def _whole(layer: RowLayer, x: Tensor) -> Tensor:
    """All rows of a layer."""
    seen = layer.window.seen(range(layer.outputs))
    return layer.compute(F.pad(x, (0, 0, -seen.start, seen.stop - layer.height), value=layer.fill))


def _normalised(norm: nn.BatchNorm2d, height: int, x: Tensor) -> Tensor:
    found: Tensor = norm(x)
    return found


def _median_s(forward: Callable[[], Tensor], repeats: int, device: torch.device) -> float:
    found = list[float]()
    for _ in range(repeats + 1):
        wait_for(device)
        begun = time.perf_counter()
        out: Any = forward()
        out.backward(torch.ones_like(out))
        wait_for(device)
        found.append(time.perf_counter() - begun)
    return median(found[1:])
