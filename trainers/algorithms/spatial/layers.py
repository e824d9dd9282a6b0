"""A model in two parts: the layers that can be computed by rows, and the others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.algorithms.spatial.rows import Window
from trainers.errors import SpecRejected
from trainers.models.networks.column_norm import ColumnNorm
from trainers.models.split import FUNCTIONS, METHODS, MODULES
from trainers.models.tracing import trace

ELEMENTWISE = (*MODULES, nn.LocalResponseNorm, ColumnNorm)
"""Modules whose output at a place depends on the input at that place alone, in whichever channels."""
SUMS = (operator.add, operator.iadd, torch.add)
POOLS: Mapping[object, tuple[type[nn.Module], tuple[str, ...]]] = {
    F.max_pool2d: (nn.MaxPool2d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")),
    torch.max_pool2d: (nn.MaxPool2d, ("kernel_size", "stride", "padding", "dilation", "ceil_mode")),
    F.avg_pool2d: (nn.AvgPool2d, ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")),
}
"""Functions, the modules that do the same, and their arguments after the first."""

Through = Callable[["RowLayer", Tensor], Tensor]
"""Computes a layer's rows from the worker's own rows of its input."""
Normalised = Callable[[nn.BatchNorm2d, int, Tensor], Tensor]
"""Likewise those of a batch norm, from the height of all rows together."""


@dataclass(frozen=True)
class RowLayer:
    """A convolution or a pooling of which each worker computes some rows."""

    name: str
    window: Window
    height: int
    """Rows of its input."""
    fill: float
    """What its padding is made of."""
    compute: Callable[[Tensor], Tensor]
    """Of rows together with their halos and padding, without any padding of its own above and below."""

    @property
    def outputs(self) -> int:
        """Rows of its output."""
        return self.window.outputs(self.height)


class RowModel:
    """A model whose first layers are computed by rows, and the others by whole examples.

    These first layers are convolutions, poolings, batch norm and what works on each place by itself, branches that are
    added or joined included. They end before `until`, or before the first layer of another kind, where everything after
    depends on one tensor.
    """

    def __init__(self, model: nn.Module, height: int, until: str | None = None) -> None:
        """height: Of the images.

        Raises:
            SpecRejected: The model does not begin with such layers, or convolutions would be left behind them.
        """
        graph = _traced(model)
        self.interpreter = fx.Interpreter(fx.GraphModule(model, graph))
        self.heights: dict[fx.Node, int] = {}
        self.layers: dict[fx.Node, RowLayer] = {}
        self.norms: dict[fx.Node, nn.BatchNorm2d] = {}
        nodes = list(graph.nodes)
        images = [node for node in nodes if node.op == "placeholder" and node.users]
        if until is not None and not any(_name(node) == until for node in nodes):
            names = ", ".join(dict.fromkeys(_name(node) for node in nodes if node.op == "call_module"))
            raise SpecRejected(f"algorithm.until: the model calls no layer {until}; there are {names}")
        end = self._walk(model, nodes, images, height, until)
        cut, self.features = _last_cut(nodes, end) if len(images) == 1 else (0, None)
        self.by_rows = [node for node in nodes[:cut] if node.op != "placeholder"]
        self.by_examples = nodes[cut:]
        if until is not None and not self.layers and _name(nodes[end]) == until:
            raise SpecRejected(f"algorithm.until: no convolution or pooling comes before {until}; name a later layer")
        if self.features is None or not any(node in self.layers for node in self.by_rows):
            raise SpecRejected(
                f"model.name: spatial divides the rows of the convolutions with which a model of images begins, and "
                f"this one has {_described(model, nodes[end])} before any; take another model, or algorithm sync"
            )
        left = [node for node in self.by_examples if _convolves(model, node)]
        if left and (until is None or _name(nodes[end]) != until):
            raise SpecRejected(
                f"algorithm.until: {_described(model, nodes[end])} needs whole examples, and the convolution "
                f"{_name(left[0])} comes after it; give until: {_name(nodes[cut])}, from where on whole examples are "
                "computed, or take a model without such layers, or algorithm sync"
            )
        self.images = images[0]

    def check_workers(self, size: int) -> None:
        """Refuse so many workers where a part of some rows would be thinner than its halo.

        Raises:
            SpecRejected: Names the layer, and what would work.
        """
        layers = [self.layers[node] for node in self.by_rows if node in self.layers]
        for layer in layers:
            if not layer.window.can_be_shared(layer.height, size):
                most = next(k for k in range(size, 0, -1) if all(x.window.can_be_shared(x.height, k) for x in layers))
                fewer = f"set workers.count and workers.max to {most} or less, or " if most > 1 else ""
                raise SpecRejected(
                    f"workers: {layer.name} makes {layer.outputs} rows of {layer.height}, and {size} workers, as many "
                    f"as the run may come to have, would have parts that are thinner than the halos of "
                    f"{(layer.window.reach - 1) // 2} rows; {fewer}give algorithm.until: {layer.name}, from where on "
                    "whole examples are computed, or larger images"
                )

    @property
    def features_height(self) -> int:
        """Rows of the maps with which the rows end."""
        assert self.features is not None
        return self.heights[self.features]

    def rows(self, x: Tensor, through: Through, normalised: Normalised) -> Tensor:
        """The worker's rows (N, C', h', W') of the last of these layers, from its rows of the images (N, C, h, W)."""
        env: dict[fx.Node, Any] = {self.images: x}
        for node in self._each(self.by_rows, env):
            if node in self.layers:
                env[node] = through(self.layers[node], env[_input(node)])
            elif node in self.norms:
                env[node] = normalised(self.norms[node], self.heights[node], env[_input(node)])
            else:
                env[node] = self.interpreter.run_node(node)
        assert self.features is not None
        found: Tensor = env[self.features]
        return found

    def rest(self, features: Tensor) -> Any:
        """The model's output, from whole maps (n, C', H', W')."""
        assert self.features is not None
        env: dict[fx.Node, Any] = {self.features: features}
        for node in self._each(self.by_examples, env):
            env[node] = self.interpreter.run_node(node)
        return env[self.by_examples[-1]]

    def _each(self, nodes: Sequence[fx.Node], env: dict[fx.Node, Any]) -> Iterator[fx.Node]:
        """Each node in turn; what no later one needs is let go."""
        self.interpreter.env = env
        for node in nodes:
            yield node
            for over in self.interpreter.user_to_last_uses.get(node, []):
                if over is not self.features:
                    env.pop(over, None)
        self.interpreter.env = {}

    def _walk(
        self, model: nn.Module, nodes: Sequence[fx.Node], images: Sequence[fx.Node], height: int, until: str | None
    ) -> int:
        """Find the layers that can be computed by rows. Returns the index of the first node that cannot."""
        self.heights.update(dict.fromkeys(images, height))
        for index, node in enumerate(nodes):
            if node.op == "placeholder":
                continue
            if _name(node) == until or not {*node.all_input_nodes} <= self.heights.keys():
                return index
            if found := _window(model, node):
                window, fill, compute = found
                layer = RowLayer(_name(node), window, self.heights[_input(node)], fill, compute)
                if layer.outputs < 1:
                    return index
                self.layers[node], self.heights[node] = layer, layer.outputs
            elif norm := _batch_norm(model, node):
                self.norms[node], self.heights[node] = norm, self.heights[_input(node)]
            elif _is_elementwise(model, node) and len({self.heights[each] for each in node.all_input_nodes}) == 1:
                self.heights[node] = self.heights[node.all_input_nodes[0]]
            else:
                return index
        return len(nodes) - 1


def _traced(model: nn.Module) -> fx.Graph:
    try:
        return trace(model)
    except Exception as error:  # the model's own code may raise anything when it is traced
        raise SpecRejected(
            f"model.name: spatial cannot tell the layers of this model apart, because what it does depends on its "
            f"values ({error}); use a model without such branches, or algorithm sync"
        ) from error


def _last_cut(nodes: Sequence[fx.Node], end: int) -> tuple[int, fx.Node | None]:
    """The last place up to `end` where everything after depends on one tensor of what is before, and that tensor."""
    position = {node: index for index, node in enumerate(nodes)}
    for cut in range(end, 0, -1):
        live = [node for node in nodes[:cut] if any(position[user] >= cut for user in node.users)]
        if len(live) == 1:
            return cut, live[0]
    return 0, None


def _name(node: fx.Node) -> str:
    """As a spec names a layer."""
    return str(node.target) if node.op == "call_module" else node.name


def _described(model: nn.Module, node: fx.Node) -> str:
    if node.op == "output":
        return "nothing"
    kind = type(model.get_submodule(str(node.target))).__name__ if node.op == "call_module" else "a function"
    return f"{_name(node)} ({kind})"


def _input(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _convolves(model: nn.Module, node: fx.Node) -> bool:
    return node.op == "call_module" and isinstance(model.get_submodule(str(node.target)), nn.Conv2d)


def _batch_norm(model: nn.Module, node: fx.Node) -> nn.BatchNorm2d | None:
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if type(module) is nn.BatchNorm2d else None


def _is_elementwise(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node computes the rows of its output from the same rows of its inputs."""
    if node.op == "call_module":
        return type(model.get_submodule(str(node.target))) in ELEMENTWISE
    if node.op == "call_method":
        return node.target in METHODS and len(node.all_input_nodes) == 1
    if node.target is torch.cat:
        return bool((node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)) == 1)
    known: Sequence[Any] = FUNCTIONS
    return node.target in SUMS or (node.target in known and len(node.all_input_nodes) == 1)


def _window(model: nn.Module, node: fx.Node) -> tuple[Window, float, Callable[[Tensor], Tensor]] | None:
    """Of a node that is a convolution or a pooling, what it sees, its padding, and how it computes; else None."""
    if node.op == "call_function" and node.target in POOLS:
        kind, names = POOLS[node.target]
        options = dict(zip(names, node.args[1:], strict=False)) | node.kwargs
        options.pop("input", None)
        return _pooling(kind(**options))
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    return _convolution(module) if type(module) is nn.Conv2d else _pooling(module)


def _convolution(module: nn.Conv2d) -> tuple[Window, float, Callable[[Tensor], Tensor]] | None:
    padding, reaches = module.padding, [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
    if module.padding_mode != "zeros" or (padding == "same" and any(reach % 2 for reach in reaches)):
        return None
    rows, columns = (0, 0) if padding == "valid" else [reach // 2 for reach in reaches]
    if not isinstance(padding, str):
        rows, columns = padding

    def compute(x: Tensor) -> Tensor:
        weight, bias = module.weight, module.bias  # which may be others in the next step
        return F.conv2d(x, weight, bias, module.stride, (0, columns), module.dilation, module.groups)

    return Window(module.kernel_size[0], module.stride[0], rows, module.dilation[0]), 0.0, compute


def _pooling(module: nn.Module | None) -> tuple[Window, float, Callable[[Tensor], Tensor]] | None:
    if not isinstance(module, nn.MaxPool2d | nn.AvgPool2d) or module.ceil_mode:
        return None
    kernel, stride, padding = _pair(module.kernel_size), _pair(module.stride), _pair(module.padding)
    sides = (0, padding[1])
    if isinstance(module, nn.MaxPool2d):
        dilation = _pair(module.dilation)
        pool = partial(F.max_pool2d, kernel_size=kernel, stride=stride, padding=sides, dilation=dilation)
        window = Window(kernel[0], stride[0], padding[0], dilation[0])
        return None if module.return_indices else (window, float("-inf"), pool)
    if padding[0] and not module.count_include_pad and module.divisor_override is None:
        return None  # rows of padding could not be told from others
    pool = partial(
        F.avg_pool2d,
        kernel_size=kernel,
        stride=stride,
        padding=sides,
        count_include_pad=module.count_include_pad,
        divisor_override=module.divisor_override,
    )
    return Window(kernel[0], stride[0], padding[0]), 0.0, pool


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
