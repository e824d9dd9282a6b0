"""The three products of a fully connected layer, y = x W^T + b, by the faster of the two libraries of torch.

On a CPU torch multiplies float32 through MKL, which does not use all the vector instructions of processors that are not
Intel's; oneDNN, which torch uses for convolutions, does: layers of a few million weights take half the time (AMD EPYC,
one thread). Which library is used depends on the shapes alone, so that every worker gets the same bits.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

LEAST_WEIGHTS = 64 * 1024
"""Below this size a call of oneDNN costs more than it saves."""

BLOCK = 1024 * 1024
"""Elements of a weight's gradient that are computed at once, so that they are copied to their place from the cache."""


def outputs(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b: (..., outputs) from x (..., inputs), weight (outputs, inputs) and bias (outputs,)."""
    if not _through_onednn(x, weight):
        return F.linear(x, weight, bias)
    if x.dim() == 2:
        return _onednn(x, weight, bias)
    product = _onednn(x.reshape(-1, x.shape[-1]), weight, bias)
    # Not `view`: autograd would forbid the next layer to work in place, as the activations of AlexNet and VGG do.
    reshaped: Tensor = torch.ops.aten._unsafe_view(product, [*x.shape[:-1], len(weight)])
    return reshaped


def input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """dy W: (B, inputs) from dy (B, outputs)."""
    if _through_onednn(dy, weight):
        return _onednn(dy, weight.t(), None)
    return dy.mm(weight)


def weight_gradient(dy: Tensor, x: Tensor, into: Tensor, add: bool = False) -> None:
    """dy^T x, (outputs, inputs), written or added to `into`."""
    if not _through_onednn(x, into):
        if add:
            into.addmm_(dy.t(), x)
        elif into.device == dy.device:
            torch.mm(dy.t(), x, out=into)
        else:
            into.copy_(dy.t().mm(x))
        return
    rows = max(32, BLOCK // into.shape[1])
    for start in range(0, len(into), rows):
        target = into[start : start + rows]
        product = _onednn(dy.t()[start : start + rows], x.t(), None)
        if add:
            target.add_(product)
        else:
            target.copy_(product)


def _through_onednn(x: Tensor, weight: Tensor) -> bool:
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
