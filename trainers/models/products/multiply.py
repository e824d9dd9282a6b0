"""The three products of a fully connected layer, y = x W^T + b, through one of the two libraries of torch.

On a CPU torch multiplies float32 through MKL; oneDNN, which torch uses for convolutions, is faster for large layers on
some processors and slower on others. The choice depends on the layer alone, not on who computes or how many rows a
minibatch has, so that every worker of a run gets the same bits.
"""

from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.models.products.choice import LEAST_WEIGHTS, PASSES, Choice, product_name

USUAL_WEIGHTS = 64 * 1024
"""Weights of a layer from which on oneDNN multiplies where nothing was measured."""

COPIED_WEIGHTS = 256 * 1024
"""Weights of a layer below which it costs less to copy the gradient than to write it to its place from Python."""

BLOCK = 1024 * 1024
"""Elements of a weight's gradient that are computed at once, so that they are copied to their place from the cache."""


class Products:
    """Multiplies through the library that a choice names for each layer and pass."""

    def __init__(self, choice: Choice | None = None) -> None:
        """choice: by default oneDNN multiplies where a layer is large."""
        self.choice = choice or Choice()
        self.measured, self.onednn = frozenset(self.choice.measured), frozenset(self.choice.onednn)
        self.through: dict[tuple[int, int, int], bool] = {}  # (pass, inputs, outputs) -> whether through oneDNN
        self.seen: set[tuple[int, int, int]] = set()  # (rows, inputs, outputs)

    def leaves_to_torch(self, x: Tensor, weight: Tensor) -> bool:
        """Whether a layer with this weight (outputs, inputs) is trained as well as torch itself does: it is small, and
        all of its products go through torch's own library."""
        numel = weight.numel()
        if numel >= COPIED_WEIGHTS:
            return False
        if numel < LEAST_WEIGHTS:  # asked at every step of the smallest models
            return True
        count, inputs = weight.shape
        return not _is_large(x, weight) or not any(self._through_onednn(i, inputs, count, x) for i in range(3))

    def outputs(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b: (..., outputs) from x (..., inputs), weight (outputs, inputs) and bias (outputs,)."""
        count, inputs = weight.shape
        if not _is_large(x, weight) or not self._through_onednn(0, inputs, count, x):
            return F.linear(x, weight, bias)
        if x.dim() == 2:
            return _onednn(x, weight, bias)
        product = _onednn(x.reshape(-1, inputs), weight, bias)
        # Not `view`: autograd would forbid the next layer to work in place, as the activations of AlexNet and VGG do.
        reshaped: Tensor = torch.ops.aten._unsafe_view(product, [*x.shape[:-1], count])
        return reshaped

    def input_gradient(self, dy: Tensor, weight: Tensor) -> Tensor:
        """dy W: (B, inputs) from dy (B, outputs)."""
        count, inputs = weight.shape
        if _is_large(dy, weight) and self._through_onednn(1, inputs, count, dy):
            return _onednn(dy, weight.t(), None)
        return dy.mm(weight)

    def weight_gradient(self, dy: Tensor, x: Tensor, into: Tensor, add: bool = False) -> None:
        """dy^T x, (outputs, inputs), written or added to `into`."""
        count, inputs = into.shape
        if not _is_large(x, into) or not self._through_onednn(2, inputs, count, x):
            if add:
                into.addmm_(dy.t(), x)
            elif into.device == dy.device:
                torch.mm(dy.t(), x, out=into)
            else:
                into.copy_(dy.t().mm(x))
            return
        rows = max(32, BLOCK // inputs)
        for start in range(0, count, rows):
            target = into[start : start + rows]
            product = _onednn(dy.t()[start : start + rows], x.t(), None)
            if add:
                target.add_(product)
            else:
                target.copy_(product)

    def _through_onednn(self, which: int, inputs: int, count: int, rows: Tensor) -> bool:
        found = self.through.get((which, inputs, count))
        if found is None:
            self.seen.add((rows.numel() // rows.shape[-1], inputs, count))
            found = self.through[which, inputs, count] = self._decide(which, inputs, count)
        return found

    def _decide(self, which: int, inputs: int, count: int) -> bool:
        """As was measured for this layer; for a part of a layer, as `hybrid` has it, like the whole of it."""
        name = product_name(which, inputs, count)
        if name not in self.measured:
            begin, end = f"{PASSES[which]} {inputs}x", f"x{count}"
            passes = [other for other in sorted(self.measured) if other.startswith(PASSES[which])]
            whole = [other for other in passes if other.startswith(begin) or other.endswith(end)]
            if not whole:
                return inputs * count >= USUAL_WEIGHTS
            name = whole[0]
        return name in self.onednn


def through(onednn: bool, layers: Collection[tuple[int, int]]) -> Products:
    """Products of these layers, (inputs, outputs), through oneDNN or through torch's own library, in every pass."""
    names = tuple(product_name(which, *layer) for layer in layers for which in range(len(PASSES)))
    return Products(Choice(measured=names, onednn=names if onednn else ()))


def _is_large(x: Tensor, weight: Tensor) -> bool:
    return (
        weight.numel() >= LEAST_WEIGHTS
        and x.numel() > 0
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product
