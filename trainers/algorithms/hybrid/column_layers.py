"""The layers below the fully connected ones, in columns: what of them a worker has, and its passes through it.

Sources: Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural networks", section 3.5: each of
two GPUs has half of the filters, and they communicate in certain layers only; paper 1, section 8.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.algorithms.hybrid.slices import LayerSlice
from trainers.collectives.protocol import Collectives
from trainers.collectives.reduction_tree import block
from trainers.errors import SpecRejected
from trainers.models.networks.column_norm import ColumnNorm
from trainers.models.split import FUNCTIONS, METHODS, MODULES, FullyConnected
from trainers.spans import span

BY_CHANNEL = (*MODULES, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d)
"""What computes each channel from the same one below."""

ADDED = (operator.add, operator.iadd, torch.add)
"""Likewise, of several."""


@dataclass(frozen=True)
class Convolution(FullyConnected):
    """One whose filters are divided as the outputs of a fully connected layer are. Its inputs are the channels that a
    filter sees."""

    kernel: tuple[int, ...] = ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its parameters, by name."""
        return super().shapes | {f"{self.name}.weight": (self.outputs, self.inputs, *self.kernel)}


def convolutions_of(backbone: fx.GraphModule, columns: int) -> list[Convolution]:
    """The convolutions of the layers below the head, which all have filters in each of so many columns.

    Raises:
        SpecRejected: The layers cannot be divided into so many columns; names the field and what would work.
    """
    found = {n.target: cast(nn.Conv2d, _module(backbone, n)) for n in backbone.graph.nodes if _convolves(backbone, n)}
    layers = [
        Convolution(str(name), c.in_channels // c.groups, c.out_channels, c.bias is not None, kernel=c.kernel_size)
        for name, c in found.items()
    ]
    divided = {name for layer in layers for name in layer.parameters}
    for name, _ in (*backbone.named_parameters(), *backbone.named_buffers()):
        if name not in divided:
            raise SpecRejected(
                f"algorithm.columns: of the layers below the fully connected ones columns divide convolutions alone, "
                f"padded with zeros, and {name} is of another; take alexnet_two_columns or another model without such "
                "layers, or leave columns out"
            )
    grouped = [c.groups for c in found.values() if c.groups > 1]
    if not grouped:
        raise SpecRejected(
            "algorithm.columns: no convolution of this model has groups, so every column would need all of the others; "
            "take alexnet_two_columns, convnet_two_columns or a model of your own with groups, or leave columns out"
        )
    most = math.gcd(*grouped, *(layer.outputs for layer in layers))
    if most % columns:
        fit = [str(number) for number in range(2, most + 1) if most % number == 0]
        raise SpecRejected(
            f"algorithm.columns: {columns} columns do not divide the groups of the convolutions ("
            f"{', '.join(str(groups) for groups in sorted(set(grouped)))}) and the channels of them all; "
            f"{'take ' + ' or '.join(fit) if fit else 'leave it out'}"
        )
    return layers


def met(backbone: fx.GraphModule, columns: int, image: Tensor) -> list[int]:
    """How many activities of one image, (1, C, H, W), are sent from worker to worker each time that columns meet."""
    counted = _Counted()
    passes = _Passes(backbone, columns, counted, range(columns))
    passes.params = dict(backbone.named_parameters())
    with torch.no_grad():
        passes.run(image)
    return counted.found


class ColumnLayers:
    """A worker has adjacent columns: their filters in every convolution, and the maps that these make, of all examples.

    A convolution with groups sees maps of its own columns only. One without sees those of all, which the workers send
    each other before it; so they do before the fully connected layers, and before anything that does not treat each
    channel by itself, which every worker then computes alike. Going back, each worker has a part of the gradient of
    what it has got, and the owner adds the parts up.
    """

    def __init__(self, backbone: fx.GraphModule, columns: int, collectives: Collectives) -> None:
        cuts = _cuts(columns, collectives.size)
        self.slices = column_slices(convolutions_of(backbone, columns), columns, collectives.size)
        self.names = [name for part in self.slices[collectives.rank] for name in part.layer.parameters]
        meeting = Meeting(collectives, [len(cut) for cut in cuts])
        self.passes = _Passes(backbone, columns, meeting, cuts[collectives.rank])
        self.activities = torch.empty(0)  # of the last forward pass, attached to the autograd graph

    def forward(self, params: dict[str, Tensor], images: Tensor) -> Tensor:
        """All activities of the last layer, (B, units), on every worker. params: this worker's part of each."""
        self.passes.params = {name: params[name].detach().requires_grad_() for name in self.names}
        with torch.enable_grad():
            self.activities = self.passes.run(images)
        return self.activities.detach()

    def backward(self, gradient: Tensor, into: dict[str, Tensor], adds: bool) -> None:
        """From this worker's part of the gradient of the activities to that of its filters; the gradients of examples
        that went before are overwritten, or added to."""
        found = torch.autograd.grad(self.activities, [self.passes.params[name] for name in self.names], gradient)
        for name, of_filters in zip(self.names, found, strict=True):
            into[name].copy_(into[name] + of_filters if adds else of_filters)
        self.activities = torch.empty(0)


class _Passes(fx.Interpreter):
    """The forward pass of a worker's columns; autograd makes the backward pass."""

    def __init__(self, backbone: fx.GraphModule, columns: int, meeting: "Meeting", own: range) -> None:
        super().__init__(backbone)
        self.columns, self.meeting, self.own = columns, meeting, own
        self.params: dict[str, Tensor] = {}
        self.divided = _divided(backbone, columns)

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder":
            return super().run_node(n)
        if _convolves(self.module, n):
            return self._convolve(n)

        def taken(source: fx.Node) -> Any:
            meets = source in self.divided and n not in self.divided
            return self.meeting.of(self.env[source]) if meets else self.env[source]

        args, kwargs = fx.node.map_arg(n.args, taken), fx.node.map_arg(n.kwargs, taken)
        return getattr(self, n.op)(n.target, args, kwargs)

    def _convolve(self, n: fx.Node) -> Tensor:
        (source,) = n.all_input_nodes
        convolution, x = cast(nn.Conv2d, _module(self.module, n)), self.env[source]
        groups = convolution.groups
        if groups == 1 and source in self.divided:
            x = self.meeting.of(x)
        elif groups > 1:
            groups = groups // self.columns * len(self.own)
            if source not in self.divided:
                width = x.shape[1] // self.columns
                x = x[:, self.own.start * width : self.own.stop * width]
        weight, bias = self.params[f"{n.target}.weight"], self.params.get(f"{n.target}.bias")
        return F.conv2d(x, weight, bias, convolution.stride, convolution.padding, convolution.dilation, groups)


class Meeting:
    """Workers send each other the channels of their columns."""

    def __init__(self, collectives: Collectives, counts: Sequence[int]) -> None:
        """counts: columns of each worker, by rank."""
        self.collectives, self.counts = collectives, counts

    def of(self, own: Tensor) -> Tensor:
        """The channels of all columns, (B, C, H, W), from those of the worker's own; autograd knows the way back."""
        found: Tensor = own if len(self.counts) == 1 else _Gather.apply(own, self)
        return found

    def gather(self, own: Tensor) -> Tensor:
        """The same from each worker."""
        width = own.shape[1] // self.counts[self.collectives.rank]
        received = [own.new_empty(len(own), count * width, *own.shape[2:]) for count in self.counts]
        with span("exchange"):
            self.collectives.all_to_all([own.contiguous()] * len(received), received).wait()
        return torch.cat(received, 1)

    def reduce(self, gradient: Tensor) -> Tensor:
        """That of the own channels, from each worker's part of the gradient of all, added in the order of the ranks."""
        width = gradient.shape[1] // sum(self.counts)
        widths = [count * width for count in self.counts]
        parts = [part.contiguous() for part in torch.split(gradient, widths, 1)]
        received = [torch.empty_like(parts[self.collectives.rank]) for _ in parts]
        with span("exchange"):
            self.collectives.all_to_all(parts, received).wait()
        total, *others = received
        for contribution in others:
            total.add_(contribution)
        return total


class _Counted(Meeting):
    """One worker has all columns, and counts their channels where they meet."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def of(self, own: Tensor) -> Tensor:
        self.found.append(own[0].numel())
        return own


class _Gather(torch.autograd.Function):
    """All channels on the way forward, the sum of the workers' parts on the way back."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, meeting: Meeting) -> Tensor:
        ctx.meeting = meeting
        return meeting.gather(own)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = upstream
        return ctx.meeting.reduce(gradient), None


def column_slices(layers: Sequence[Convolution], columns: int, size: int) -> list[list[LayerSlice]]:
    """The part of each convolution that each of `size` workers has, by rank."""
    cuts = _cuts(columns, size)

    def rows(width: int) -> tuple[slice, ...]:
        return tuple(slice(cut.start * width, cut.stop * width) for cut in cuts)

    return [[LayerSlice(x, "outputs", rows(x.outputs // columns), rank) for x in layers] for rank in range(size)]


def _cuts(columns: int, size: int) -> list[range]:
    """The columns of each of `size` workers, by rank."""
    return [range(*block(columns, rank, size)) for rank in range(size)]


def _divided(backbone: fx.GraphModule, columns: int) -> dict[fx.Node, int]:
    """The nodes of whose output each worker has the channels of its own columns, and how many channels all have."""
    found = dict[fx.Node, int]()
    for node in backbone.graph.nodes:
        if _convolves(backbone, node):
            found[node] = cast(nn.Conv2d, _module(backbone, node)).out_channels
            continue
        channels = {found.get(source) for source in node.all_input_nodes}
        if len(channels) == 1 and (same := channels.pop()) and _is_by_column(backbone, node, same // columns):
            found[node] = same
    return found


def _module(backbone: nn.Module, node: fx.Node) -> nn.Module | None:
    return backbone.get_submodule(str(node.target)) if node.op == "call_module" else None


def _convolves(backbone: nn.Module, node: fx.Node) -> bool:
    module = _module(backbone, node)
    return type(module) is nn.Conv2d and module.padding_mode == "zeros"


def _is_by_column(backbone: nn.Module, node: fx.Node, width: int) -> bool:
    """Whether what it makes of each of these columns, of so many channels, depends on that column alone."""
    if node.op == "call_module":
        module = _module(backbone, node)
        return width % module.width == 0 if isinstance(module, ColumnNorm) else type(module) in BY_CHANNEL
    if node.op == "call_function":
        return node.target in FUNCTIONS or node.target in ADDED
    return node.op == "call_method" and node.target in METHODS
