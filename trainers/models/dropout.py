"""Dropout whose masks can be replayed: drawn for (seed, epoch, example, layer, unit), not from a stream.

An example gets the same mask in any minibatch, on any worker, and after a resize or a failure, which bit-equal runs
need. Masks are computed on the device of the activations by `trainers.data.draws`.
"""

import logging
import sys
from typing import Any

import torch
from torch import nn

from trainers.data.delivery import sent_to
from trainers.data.draws import Int64Array, uniform_torch

log = logging.getLogger(__name__)

FIRST_STREAM = 2**16
"""First stream of dropout; the streams of random draws below it belong to others (augmentation)."""

CALLS = 2**16
"""Streams per layer: one for each call of the layer in a forward pass."""

_WHOLE_FEATURES = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Modules that drop whole channels: one unit per channel."""


class DrawContext:
    """The examples of the next forward pass; the caller sets them before each pass.

    seed: of the run. not_replaced: names of modules that draw from torch's generator and have no replacement here, so
        that their masks are not a function of the example.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0
        self.examples: Int64Array | None = None  # (B,)
        self.passes = 0
        self.not_replaced: tuple[str, ...] = ()
        self._on_device: torch.Tensor | None = None

    def set(self, epoch: int, examples: Int64Array) -> None:
        """The next forward pass computes `examples`, (B,) int64, of `epoch`, in this order."""
        self.epoch, self.examples = epoch, examples
        self.passes += 1
        self._on_device = None

    def on_device(self, device: torch.device) -> torch.Tensor:
        """The examples on a device, (B,) int64; copied there once per pass."""
        assert self.examples is not None, "DrawContext.set() must be called before a forward pass in training mode"
        if self._on_device is None or self._on_device.device != device:
            self._on_device = sent_to(torch.from_numpy(self.examples.copy()), device)
        return self._on_device


class ExampleDropout(nn.Module):
    """Drops with probability p and scales the rest by 1 / (1 - p), as nn.Dropout does; identity in evaluation.

    layer: number of the dropout layer in the model. axes: how many leading axes of an example have masks of their own.
    None: every activation is dropped by itself; 1: each channel (Dropout2d); 0: the example as a whole (stochastic
    depth). Inputs are (B, ...), or (k B, ...) with the k rows of an example adjacent (windows of attention); of other
    numbers of rows, torch's generator draws, which is seeded for each virtual worker's forward pass.
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
        """The output has the shape of x."""
        if not self.training or self.p == 0:
            return x
        call = self.next_call
        self.next_call = call + 1  # a module used twice in one pass draws two masks
        return self.drop(x, call)

    @property
    def next_call(self) -> int:
        """The number of its next call in the forward pass under way."""
        return self._calls if self._pass == self._context.passes else 0

    @next_call.setter
    def next_call(self, call: int) -> None:
        self._pass, self._calls = self._context.passes, call

    @property
    def by_unit(self) -> bool:
        """Whether each activation is dropped independently."""
        return self._axes is None

    def drop(self, x: torch.Tensor, call: int, first: int = 0) -> torch.Tensor:
        """The output for x in call number `call` of a forward pass in training mode.

        first: index of the first unit in x, if x holds only some of each example's units.
        """
        if self.p == 0:
            return x
        if self.p >= 1:
            return torch.zeros_like(x)
        examples = self._context.on_device(x.device)
        varied = x.shape if self._axes is None else x.shape[: self._axes + 1]
        if x.shape[0] % len(examples):  # not the same number of rows an example, as of boxes: drawn by virtual worker
            is_kept = torch.rand(varied, device=x.device) >= self.p
        else:
            units = varied.numel() // len(examples)
            stream = FIRST_STREAM + self._layer * CALLS + call
            is_kept = uniform_torch(self._context.seed, self._context.epoch, examples, units, stream, first) >= self.p
        mask = is_kept.view(*varied, *[1] * (x.ndim - len(varied))).to(x.dtype).mul_(1 / (1 - self.p))
        return x * mask

    def extra_repr(self) -> str:
        return f"p={self.p}"


def replace_dropout(module: nn.Module, seed: int) -> DrawContext:
    """Replace every dropout layer of a model by an ExampleDropout; parameters keep their names.

    Covers nn.Dropout, Dropout1d to Dropout3d, and torchvision's stochastic depth by rows. Modules that draw from
    torch's generator in other ways (dropout inside attention or recurrent layers, alpha dropout) are not replaced; they
    are named in `DrawContext.not_replaced` and logged. Returns the context that the caller sets before each forward
    pass.
    """
    context = DrawContext(seed)
    replaced: dict[nn.Module, ExampleDropout] = {}
    for path, child in list(module.named_modules(remove_duplicate=False)):
        p = _rate(child)
        if p is None:
            continue
        if child not in replaced:  # a module that is used twice stays one module
            replaced[child] = ExampleDropout(p, len(replaced), context, _axes(child)).train(child.training)
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, replaced[child])
    context.not_replaced = tuple(name for name, child in module.named_modules() if _draws_from_stream(child))
    if context.not_replaced:
        log.warning(
            "random draws of %s come from torch's stream and not from the example", ", ".join(context.not_replaced)
        )
    return context


def _rate(module: nn.Module) -> float | None:
    """The rate of a module that is replaced, else None."""
    if isinstance(module, (nn.Dropout, *_WHOLE_FEATURES)):
        return module.p
    if isinstance(module, _stochastic_depth()) and module.mode == "row":
        return float(module.p)
    return None


def _stochastic_depth() -> tuple[type[Any], ...]:
    """torchvision's class. Until somebody has imported torchvision, which takes as long as torch, no module is one."""
    found = getattr(sys.modules.get("torchvision.ops"), "StochasticDepth", None)
    return () if found is None else (found,)


def _axes(module: nn.Module) -> int | None:
    if isinstance(module, _stochastic_depth()):
        return 0
    return 1 if isinstance(module, _WHOLE_FEATURES) else None


def _draws_from_stream(module: nn.Module) -> bool:
    """Whether a module still draws random numbers in training whose values depend on what was drawn before."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, (nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU, *_stochastic_depth()))
