"""A model in two parts: the backbone, which turns images into activities, and the head, the fully connected layers at
the end (paper 1, section 3). The backbone has most of the computation, the head most of the parameters."""

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.errors import SpecRejected
from trainers.models.dropout import ExampleDropout, replace_dropout
from trainers.models.networks.projected import Projected
from trainers.models.tracing import trace

Way = Literal["outputs", "inputs"]
"""How a layer is divided among workers: each has some of its outputs, or the weights of some of its inputs."""

Elementwise = Callable[[Tensor, int], Tensor]
"""An elementwise function of u units, (B, u) to (B, u), and of the index of the first of them in its layer."""

MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Sigmoid, nn.LogSigmoid,
    nn.Tanh, nn.Softplus, nn.Softsign, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.Identity,
)  # fmt: skip
FUNCTIONS = (
    torch.relu, torch.sigmoid, torch.tanh, F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish,
    F.sigmoid, F.logsigmoid, F.tanh, F.softplus, F.softsign, F.hardsigmoid, F.hardswish, F.hardtanh,
)  # fmt: skip
METHODS = ("relu", "sigmoid", "tanh")


@dataclass(frozen=True)
class FullyConnected:
    """One layer of the head, and the elementwise layers after it: activation, dropout."""

    name: str
    """Name of the module; its parameters are `name.weight` (outputs, inputs) and, where it has one, `name.bias`."""
    inputs: int
    outputs: int
    has_bias: bool
    after: tuple[Elementwise, ...] = ()
    sees: int | None = None
    """How many numbers each of its outputs sees, and its weight has columns, where these are not all inputs."""
    projection: "FullyConnected | None" = None
    """What `Projected` sees of the inputs of other blocks."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of its parameters, by name."""
        found: dict[str, tuple[int, ...]] = {f"{self.name}.weight": (self.outputs, self.sees or self.inputs)}
        if self.has_bias:
            found[f"{self.name}.bias"] = (self.outputs,)
        return found if self.projection is None else found | self.projection.shapes

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(self.shapes)


@dataclass(frozen=True)
class Split:
    """The two parts of a model; they share its modules."""

    backbone: fx.GraphModule
    """Images (B, C, H, W) to activities (B, inputs of the first layer of the head)."""
    head: tuple[FullyConnected, ...]
    """From the first layer to the last."""


def split_model(model: nn.Module) -> Split:
    """Split a model into its backbone and its head.

    The head is the longest chain of fully connected layers, activations and dropout at the end of the model that starts
    with a fully connected layer; the backbone is everything before it. None of these layers changes the number of axes,
    so a model that ends in (B, classes) has a head that works on (B, units) throughout.

    Raises:
        SpecRejected: The model does not end in a fully connected layer, or torch.fx cannot trace it.
    """
    graph = _traced(model)
    (output,) = (node for node in graph.nodes if node.op == "output")
    chain: list[fx.Node] = []
    node = output.args[0]
    while isinstance(node, fx.Node) and len(node.users) == 1 and _belongs(model, node):
        chain.insert(0, node)
        node = node.args[0]
    chain = list(itertools.dropwhile(lambda node: not _is_linear(model, node), chain))
    if not chain:
        raise SpecRejected(
            "model.name: hybrid divides the fully connected layers that end a model, and this one does not end in any; "
            "use alexnet, vgg16, convnet, a ResNet or another model whose last layer is an nn.Linear, or algorithm sync"
        )
    head = tuple(_layers(model, graph, chain))
    _check_owns_parameters(model, graph, head)
    output.args = (chain[0].args[0],)
    for node in reversed(chain):
        graph.erase_node(node)
    return Split(fx.GraphModule(model, graph), head)


def split_built(model: nn.Module) -> Split:
    """The same of a model that was just built, and is left as it is: of a copy that shares its parameters and has the
    dropout of a run, which may lie between layers of the head."""
    twin = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    replace_dropout(twin, seed=0)
    return split_model(twin)


def choose_ways(head: Sequence[FullyConnected], paired: bool, restricted: bool = False) -> tuple[Way, ...]:
    """How each layer of a head is divided.

    paired: whether a layer that is divided by outputs may be followed by one divided by inputs, which then needs no
        exchange in between; of all such choices the one that exchanges the fewest activities is taken. Otherwise all
        layers are divided by outputs.
    restricted: whether the units of the layers between the first and the last see those of their own block only. All
        layers but the last are then divided by outputs.
    """
    ways: tuple[Way, ...] = ("outputs", "inputs") if paired else ("outputs",)
    every = itertools.product(ways, repeat=len(head))
    allowed = [ways for ways in every if ("inputs", "inputs") not in itertools.pairwise(("inputs", *ways))]
    if restricted:
        allowed = [ways for ways in allowed if "inputs" not in ways[:-1]]
    return min(allowed, key=lambda ways: (exchanged(head, ways, restricted), -ways.count("inputs")))


def exchanged(head: Sequence[FullyConnected], ways: Sequence[Way], restricted: bool = False) -> int:
    """Activities and gradients of activities per example that K workers exchange between the layers of the head.

    Each worker sends (K - 1)/K of them, for 1/K of the examples that it computes. restricted: as for `choose_ways`;
    what workers of one block exchange is not counted.
    """
    total = 0
    for i, (layer, way, following) in enumerate(zip(head, ways, [*ways[1:], None], strict=True)):
        if restricted and i + 2 < len(head):
            continue
        if way == "inputs":  # an all-reduce of the partial sums, and of the gradient where a layer follows
            total += layer.outputs * (2 if following is None else 4)
        elif following == "outputs":  # an all-gather, and a reduce-scatter of the gradient
            total += layer.outputs * 2
    return total


def _traced(model: nn.Module) -> fx.Graph:
    try:
        return trace(model)
    except Exception as error:  # the model's own code may raise anything when it is traced
        raise SpecRejected(
            f"model.name: hybrid cannot tell the layers of this model apart, because what it does depends on its "
            f"values ({error}); use a model without such branches, or algorithm sync"
        ) from error


def _module(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_linear(model: nn.Module, node: fx.Node) -> bool:
    return type(_module(model, node)) in (nn.Linear, Projected)


def _belongs(model: nn.Module, node: fx.Node) -> bool:
    """Whether a node may be part of a head: it has one input, and is elementwise or fully connected."""
    if not node.args or node.all_input_nodes != [node.args[0]]:
        return False
    if node.op == "call_module":
        module = _module(model, node)
        if isinstance(module, ExampleDropout):
            return module.by_unit
        return type(module) in (nn.Linear, Projected, *MODULES)
    known: Sequence[Any] = FUNCTIONS if node.op == "call_function" else METHODS if node.op == "call_method" else ()
    return node.target in known


def _layers(model: nn.Module, graph: fx.Graph, chain: Sequence[fx.Node]) -> Iterable[FullyConnected]:
    starts = [i for i, node in enumerate(chain) if _is_linear(model, node)]
    for start, stop in itertools.pairwise([*starts, len(chain)]):
        name = str(chain[start].target)
        linear = model.get_submodule(name)
        assert isinstance(linear, nn.Linear | Projected)
        after = tuple(_elementwise(model, graph, node) for node in chain[start + 1 : stop])
        found = FullyConnected(name, linear.in_features, linear.out_features, linear.bias is not None, after)
        if isinstance(linear, Projected):
            outputs, wide = linear.projection.weight.shape
            projection = FullyConnected(f"{name}.projection", linear.in_features, outputs, has_bias=False, sees=wide)
            found = replace(found, sees=linear.weight.shape[1], projection=projection)
        yield found


def _elementwise(model: nn.Module, graph: fx.Graph, node: fx.Node) -> Elementwise:
    """What a node computes, never in place, because the backward pass needs its input."""
    module = _module(model, node)
    if isinstance(module, ExampleDropout):
        same = [other for other in graph.nodes if _module(model, other) is module]
        return partial(_drop, module, same.index(node))
    if module is not None:
        module = copy.copy(module)
        if hasattr(module, "inplace"):
            vars(module)["inplace"] = False
        return partial(_ignoring_offset, module)
    function = getattr(torch, str(node.target)) if node.op == "call_method" else node.target
    options = {name: value for name, value in node.kwargs.items() if name != "inplace"}
    return partial(_ignoring_offset, partial(_call, function, node.args[1:], options))


def _drop(dropout: ExampleDropout, call: int, x: Tensor, first: int) -> Tensor:
    return dropout.drop(x, call, first)


def _ignoring_offset(function: Callable[[Tensor], Tensor], x: Tensor, first: int) -> Tensor:
    return function(x)


def _call(function: Any, more: tuple[Any, ...], options: dict[str, Any], x: Tensor) -> Tensor:
    result: Tensor = function(x, *more, **options)
    return result


def _check_owns_parameters(model: nn.Module, graph: fx.Graph, head: Sequence[FullyConnected]) -> None:
    """Refuse a head whose parameters are used elsewhere in the model.

    Raises:
        SpecRejected: Names the layer.
    """
    names = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    used: list[int] = []
    for node in graph.nodes:
        if node.op == "call_module":
            used += [id(p) for p in model.get_submodule(str(node.target)).parameters()]
        elif node.op == "get_attr" and str(node.target) in names:
            used.append(names[str(node.target)])
    for layer in head:
        if any(used.count(names[name]) != 1 for name in layer.parameters):
            raise SpecRejected(
                f"model.name: hybrid cannot divide {layer.name}, because its parameters are used elsewhere in the "
                f"model too; use a model whose fully connected layers are its own, or algorithm sync"
            )
