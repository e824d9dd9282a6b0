"""Dropout whose masks can be replayed: drawn for (seed, epoch, example, layer, unit), not from a stream.

An example gets the same mask in any minibatch, on any worker, and after a resize or a death (the house's rule for
bit-equal runs). Masks are computed on the device of the activations by `trainers.data.draws`.
"""

import logging

import numpy as np
import torch
from torch import nn
from torchvision.ops import StochasticDepth

from trainers.data.draws import Int64Array, uniform_torch

log = logging.getLogger(__name__)

FIRST_STREAM = 2**16
"""Streams of draws below it belong to others (augmentation)."""

CALLS = 2**16
"""Streams a layer has: one for each time that it is called in a forward pass."""

_WHOLE_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""These drop whole channels: one unit a channel."""


class DrawContext:
    """Which examples the next forward pass computes; the caller sets it before each one.

    seed: the run's. left_alone: names of modules that draw from torch's stream and have no replacement here: their
    masks do not belong to an example.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.examples: Int64Array | None = None  # (B,)
        self.passes = 0
        self.left_alone: tuple[str, ...] = ()
        self._placed: torch.Tensor | None = None

    def set(self, epoch: int, examples: Int64Array) -> None:
        """The next forward pass computes `examples`, (B,) int64, of `epoch`, in this order."""
        self.epoch, self.examples = epoch, examples
        self.passes += 1
        self._placed = None

    def placed(self, device: torch.device) -> torch.Tensor:
        """The examples on a device, (B,) int64; sent there once a pass."""
        assert self.examples is not None, "DrawContext.set() must be called before a forward pass in training mode"
        if self._placed is None or self._placed.device != device:
            self._placed = torch.from_numpy(np.ascontiguousarray(self.examples)).to(device, copy=True)
        return self._placed


class ExampleDropout(nn.Module):
    """Drops with probability p and scales what stays by 1 / (1 - p), as nn.Dropout does; identity in evaluation.

    layer: which dropout of the model. axes: leading axes of one example that a mask tells apart: None: each
    activation; 1: each channel (Dropout2d); 0: the example as a whole (stochastic depth).
    Inputs are (B, ...), or (k B, ...) with the k rows of an example beside each other (windows of attention).
    """

    def __init__(self, p: float, layer: int, context: DrawContext, axes: int | None = None) -> None:
        super().__init__()
        self.p = p
        self._layer = layer
        self._context = context
        self._axes = axes
        self._pass = -1
        self._calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The shape of x."""
        if not self.training or self.p == 0:
            return x
        if self._pass != self._context.passes:
            self._pass, self._calls = self._context.passes, 0
        call = self._calls
        self._calls += 1  # a module used twice in one pass draws two masks
        return self.drop(x, call)

    @property
    def by_unit(self) -> bool:
        """Whether each activation is kept or dropped by itself."""
        return self._axes is None

    def drop(self, x: torch.Tensor, call: int, first: int = 0) -> torch.Tensor:
        """What the layer makes of x in its call number `call` of a pass in training mode. Where x holds only some of
        each example's units, `first` is the number of the first of them."""
        if self.p == 0:
            return x
        if self.p >= 1:
            return torch.zeros_like(x)
        examples = self._context.placed(x.device)
        assert x.shape[0] % len(examples) == 0, f"{x.shape[0]} rows cannot belong to {len(examples)} examples"
        varied = x.shape if self._axes is None else x.shape[: self._axes + 1]
        units = varied.numel() // len(examples)
        stream = FIRST_STREAM + self._layer * CALLS + call
        kept = uniform_torch(self._context.seed, self._context.epoch, examples, units, stream, first) >= self.p
        mask = kept.view(*varied, *[1] * (x.ndim - len(varied))).to(x.dtype).mul_(1 / (1 - self.p))
        return x * mask

    def extra_repr(self) -> str:
        return f"p={self.p}"


def replace_dropout(module: nn.Module, seed: int) -> DrawContext:
    """Puts an ExampleDropout in the place of every dropout of a built model; parameters and their names stay.

    Covers nn.Dropout, Dropout1d to Dropout3d, and torchvision's stochastic depth by rows. What draws from torch's
    stream in another way (dropout inside attention or recurrent layers, alpha dropout) is left alone, named in
    `DrawContext.left_alone` and logged. Returns the context that the caller sets before each forward pass.
    """
    context = DrawContext(seed)
    replaced: dict[nn.Module, ExampleDropout] = {}
    for path, child in list(module.named_modules(remove_duplicate=False)):
        p = _rate(child)
        if p is None:
            continue
        if child not in replaced:  # one module in two places stays one module
            replaced[child] = ExampleDropout(p, len(replaced), context, _axes(child)).train(child.training)
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, replaced[child])
    context.left_alone = tuple(name for name, child in module.named_modules() if _draws_from_stream(child))
    if context.left_alone:
        log.warning(
            "random draws of %s come from torch's stream and not from the example", ", ".join(context.left_alone)
        )
    return context


def _rate(module: nn.Module) -> float | None:
    """The rate of a module that is replaced, else None."""
    if isinstance(module, (nn.Dropout, *_WHOLE_FEATURES)):
        return module.p
    if isinstance(module, StochasticDepth) and module.mode == "row":
        return float(module.p)
    return None


def _axes(module: nn.Module) -> int | None:
    if isinstance(module, StochasticDepth):
        return 0
    return 1 if isinstance(module, _WHOLE_FEATURES) else None


def _draws_from_stream(module: nn.Module) -> bool:
    """Whether a module still draws random numbers in training whose values depend on what was drawn before."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU | StochasticDepth)
