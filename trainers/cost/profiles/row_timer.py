"""What a worker takes for the layers that `spatial` divides, where it has a part of the rows: of half of them more than
half, since what is around them is copied, and has gradients, too."""

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.algorithms.spatial.layers import RowLayer, RowModel
from trainers.algorithms.spatial.rows import rows_of
from trainers.cost.timing import wait_for


def row_seconds(model: RowModel, images: Tensor, parts: int, repeats: int) -> float:
    """Forward and backward, of rows of one of so many workers that has neighbours on both sides if any has; the median.

    images: (N, C, H, W), all of them. The gradients of parameters stay where autograd puts them.
    """
    which = parts // 2

    def through(layer: RowLayer, x: Tensor) -> Tensor:
        own, seen = rows_of(layer.height, which, parts), layer.window.seen(rows_of(layer.outputs, which, parts))
        around = (own.start - seen.start, seen.stop - own.stop)  # what neighbours would send
        return layer.compute(F.pad(x, (0, 0, *around), value=layer.fill))

    def normalised(norm: nn.BatchNorm2d, height: int, x: Tensor) -> Tensor:
        found: Tensor = norm(x)
        return found

    rows = rows_of(images.shape[2], which, parts)
    mine = images[:, :, rows.start : rows.stop].contiguous()
    return _median_s(lambda: model.rows(mine, through, normalised), repeats, images.device)


def _median_s(forward: Callable[[], Tensor], repeats: int, device: torch.device) -> float:
    found = list[float]()
    for _ in range(repeats + 1):
        wait_for(device)
        begun = time.perf_counter()
        out = forward()
        out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
        wait_for(device)
        found.append(time.perf_counter() - begun)
    return median(found[1:])
