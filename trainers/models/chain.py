"""A model as a chain of groups of layers, each of which takes only the output of the one before it."""

from collections.abc import Iterable

from torch import Tensor, fx, nn

from trainers.models.tracing import trace


class LayerGroup:
    """Adjacent layers of a model: `(x) -> y` with the model's own modules and parameters."""

    def __init__(
        self, interpreter: fx.Interpreter, input_node: fx.Node, nodes: list[fx.Node], names: tuple[str, ...]
    ) -> None:
        self.interpreter = interpreter
        self.input_node = input_node
        self.nodes = nodes
        self.names = names  # of its parameters

    def __call__(self, x: Tensor) -> Tensor:
        env = self.interpreter.env = {self.input_node: x}
        for node in self.nodes:
            env[node] = self.interpreter.run_node(node)
        self.interpreter.env = {}
        y: Tensor = env[self.nodes[-1]]
        return y


def cut_chain(model: nn.Module, num_groups: int) -> list[LayerGroup]:
    """Cut a model into groups of about equally many layers (modules or single parameters that are trained).

    A cut lies directly before a layer, at a point where everything after it depends on a single tensor computed before
    it. So branches that meet again, as in a residual block, stay together, and no parameter is on both sides of a cut.
    While torch.fx traces the model, no other thread of the process may call a module.

    Raises:
        ValueError: torch.fx cannot trace the model, or it is not a chain of that many groups; says what would work.
    """
    try:
        graph = trace(model)
    except Exception as error:  # the model's own code may raise anything when it is traced
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
    groups, input_node = list[LayerGroup](), inputs[0]
    for start, stop in zip([0, *chosen], [*chosen, _end(graph, nodes)], strict=True):
        part = nodes[start:stop]
        trained = dict.fromkeys(name for node in part for name in layers.get(node, ()))
        groups.append(LayerGroup(interpreter, input_node, part, tuple(trained)))
        input_node = part[-1]
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
    trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    return tuple(name for name, parameter in trained if id(parameter) in wanted)


def _cuts(inputs: list[fx.Node], nodes: list[fx.Node], layers: dict[fx.Node, tuple[str, ...]]) -> list[int]:
    """The indices of the nodes before which the chain may be cut."""
    if len(inputs) != 1:
        return []
    position = {node: i for i, node in enumerate(nodes)}
    last = {
        node: max((position.get(user, len(nodes)) for user in node.users), default=-1) for node in (*inputs, *nodes)
    }
    found = []
    for cut in range(1, len(nodes)):
        live = [node for node in (*inputs, *nodes[:cut]) if last[node] >= cut]
        before = {name for node in nodes[:cut] for name in layers.get(node, ())}
        after = {name for node in nodes[cut:] for name in layers.get(node, ())}
        if nodes[cut] in layers and live == [nodes[cut - 1]] and before and not before & after:
            found.append(cut)
    return found


def _balanced(cuts: list[int], layers_before: list[int], num_layers: int, num_groups: int) -> list[int]:
    """Choose `num_groups` - 1 of the cuts, so that the groups have as nearly equal numbers of layers as possible."""
    chosen, first = [], 0
    for k in range(1, num_groups):
        open_ = range(first, len(cuts) - (num_groups - 1 - k))
        best = min(open_, key=lambda i: abs(layers_before[i] - k * num_layers / num_groups))
        chosen.append(cuts[best])
        first = best + 1
    return chosen


def _end(graph: fx.Graph, nodes: list[fx.Node]) -> int:
    """The number of nodes up to and including the one that computes the model's output."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return nodes.index(output.args[0]) + 1
