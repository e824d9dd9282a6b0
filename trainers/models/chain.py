"""A model as a chain of groups of layers, each of which takes nothing but what the one before it gives."""

from collections.abc import Iterable

from torch import Tensor, fx, nn

from trainers.models.dropout import ExampleDropout


class LayerGroup:
    """Neighbouring layers of a model: `(x) -> y` with the model's own modules and parameters."""

    def __init__(
        self, interpreter: fx.Interpreter, takes: fx.Node, nodes: list[fx.Node], names: tuple[str, ...]
    ) -> None:
        self.interpreter = interpreter
        self.takes = takes
        self.nodes = nodes
        self.names = names  # of its parameters

    def __call__(self, x: Tensor) -> Tensor:
        env = self.interpreter.env = {self.takes: x}
        for node in self.nodes:
            env[node] = self.interpreter.run_node(node)
        self.interpreter.env = {}
        y: Tensor = env[self.nodes[-1]]
        return y


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, ExampleDropout) or super().is_leaf_module(m, module_qualified_name)


def cut_chain(model: nn.Module, num_groups: int) -> list[LayerGroup]:
    """The model cut into groups with about as many layers (modules or single parameters that are trained) each.

    A cut lies directly before a layer, where one tensor is all that the rest needs of what was computed; so branches
    that meet again, as a residual block's, stay together, and a parameter is never on both sides. While torch.fx traces
    no other thread of the process may call a module.

    Raises:
        ValueError: The model cannot be traced by torch.fx, or is no chain of so many groups; with what would work.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # whatever the model's own code makes of a tracer
        raise ValueError(f"backprop: torch.fx cannot trace the model ({error}); leave backprop out") from error
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    layers = {node: names for node in nodes if (names := _trained(model, node))}
    cuts = _cuts(inputs, nodes, layers)
    if len(cuts) < num_groups - 1:
        most = f"use at most {len(cuts) + 1} groups, or" if cuts else "it needs two at least;"
        raise ValueError(
            f"backprop.groups: the model is a chain of {len(cuts) + 1} groups of layers; {most} leave it out"
        )
    chosen = _balanced(cuts, [sum(node in layers for node in nodes[:cut]) for cut in cuts], len(layers), num_groups)
    interpreter = fx.Interpreter(fx.GraphModule(model, graph))
    groups, takes = list[LayerGroup](), inputs[0]
    for start, stop in zip([0, *chosen], [*chosen, _end(graph, nodes)], strict=True):
        part = nodes[start:stop]
        trained = dict.fromkeys(name for node in part for name in layers.get(node, ()))
        groups.append(LayerGroup(interpreter, takes, part, tuple(trained)))
        takes = part[-1]
    return groups


def _trained(model: nn.Module, node: fx.Node) -> tuple[str, ...]:
    """The parameters, by name, that a node trains."""
    found: Iterable[nn.Parameter] = ()
    if node.op == "call_module":
        found = model.get_submodule(str(node.target)).parameters()
    elif node.op == "get_attr":
        module, _, leaf = str(node.target).rpartition(".")
        value = getattr(model.get_submodule(module), leaf)
        found = [value] if isinstance(value, nn.Parameter) else []
    wanted = {id(parameter) for parameter in found}
    return tuple(name for name, parameter in model.named_parameters() if id(parameter) in wanted)


def _cuts(inputs: list[fx.Node], nodes: list[fx.Node], layers: dict[fx.Node, tuple[str, ...]]) -> list[int]:
    """Where the nodes may be cut: before these indices."""
    if len(inputs) != 1:
        return []
    place = {node: i for i, node in enumerate(nodes)}
    last = {node: max((place.get(user, len(nodes)) for user in node.users), default=-1) for node in (*inputs, *nodes)}
    found = []
    for cut in range(1, len(nodes)):
        live = [node for node in (*inputs, *nodes[:cut]) if last[node] >= cut]
        before = {name for node in nodes[:cut] for name in layers.get(node, ())}
        after = {name for node in nodes[cut:] for name in layers.get(node, ())}
        if nodes[cut] in layers and live == [nodes[cut - 1]] and before and not before & after:
            found.append(cut)
    return found


def _balanced(cuts: list[int], layers_before: list[int], num_layers: int, num_groups: int) -> list[int]:
    """`num_groups` - 1 of the cuts, each as near as may be to its share of the layers."""
    chosen, first = [], 0
    for k in range(1, num_groups):
        open_ = range(first, len(cuts) - (num_groups - 1 - k))
        best = min(open_, key=lambda i: abs(layers_before[i] - k * num_layers / num_groups))
        chosen.append(cuts[best])
        first = best + 1
    return chosen


def _end(graph: fx.Graph, nodes: list[fx.Node]) -> int:
    """How many of the nodes it takes to the model's result."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return nodes.index(output.args[0]) + 1
