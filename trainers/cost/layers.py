"""Each layer's share of a model's computation, parameters and activities (paper 1, section 3), by counting.

The model is called once on the meta device, which computes shapes and no numbers: a count takes seconds, whatever the
size of the model, and the same everywhere.
"""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from trainers import usercode
from trainers.cost.figures import Cost, Images, Kind, ModelCost, model_cost
from trainers.cost.memory import free_bytes
from trainers.errors import SpecRejected
from trainers.models.registry import build_model
from trainers.spec import ModelSpec

BATCH = 2
"""Images of the one call: batch normalisation refuses to train on one."""

PEAK = 100
"""How many times the size of its image a model may hold when one image goes through it; VGG and ResNets about 50."""

KINDS: dict[Kind, tuple[type[nn.Module], ...]] = {
    "convolution": (nn.modules.conv._ConvNd,),
    "fully connected": (nn.Linear,),
    "normalisation": (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm),
}


@dataclass
class Call:
    """A module's forward pass, and the backward pass of the same; all with what the modules do that it calls."""

    module: nn.Module
    before: int
    """FLOPs of forward passes before it."""
    forward_flops: int = 0
    backward_flops: int = 0
    activities: int = 0
    """Numbers that it puts out; 0 where it calls others, whose they are."""
    inner: list["Call"] = field(default_factory=list)

    @property
    def own_forward_flops(self) -> int:
        """Without those of the modules that it calls."""
        return self.forward_flops - sum(call.forward_flops for call in self.inner)

    @property
    def own_backward_flops(self) -> int:
        """Likewise."""
        return self.backward_flops - sum(call.backward_flops for call in self.inner)


def profile_model(model: ModelSpec, images: Images, code: str | None = None) -> ModelCost:
    """A model, layer by layer; `code` is the folder of a user's own.

    Raises:
        SpecRejected: The model cannot be built for these images, or not be called without data.
    """
    needs, free = PEAK * 4 * prod(images.shape), free_bytes(torch.device("cpu"))
    if needs > free:
        told = f"may take {needs / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free; use smaller images"
        raise SpecRejected(f"one image of {'x'.join(map(str, images.shape))} {told}")
    with usercode.on_path(code):
        module = build_model(model, images.classes, images.shape, seed=0).to("meta")
        try:
            counted = Count().layers(module, images.shape)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            told = f"its passes need more than shapes: {str(error).splitlines()[0]}"
            raise SpecRejected(f"model: {model.name} cannot be counted without data, {told}") from error
    return model_cost(model.name, images, counted)


class Count:
    """One forward pass, and aside, for each call in it, the backward pass of that call alone."""

    def __init__(self) -> None:
        self.counter = FlopCounterMode(
            display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
        )
        self.aside_flops = 0  # of what the counter has counted so far: not of the one pass
        self.is_aside = False
        self.under_way: list[Call] = []
        self.calls: list[Call] = []  # in the order in which they began

    def layers(self, module: nn.Module, image_shape: tuple[int, int, int]) -> list[tuple[str, Kind, Cost]]:
        """Name, kind and cost for one image of every module that multiplies itself, or has parameters of its own.

        image_shape: C, H, W.
        """
        hooks = [each.register_forward_pre_hook(self._enter) for each in module.modules()]
        hooks += [each.register_forward_hook(self._leave, with_kwargs=True) for each in module.modules()]
        with self.counter:
            module(torch.zeros(BATCH, *image_shape, device="meta"))
        for hook in hooks:
            hook.remove()
        owned = self._owned()
        costs = {call.module: Cost(parameters=owned.get(call.module, 0)) for call in self.calls}
        for call in self.calls:
            costs[call.module] += Cost(
                forward_flops=call.own_forward_flops // BATCH,
                backward_flops=call.own_backward_flops // BATCH,
                activities=call.activities // BATCH,
            )
        names = {each: name for name, each in module.named_modules()}
        return [(names[each], kind_of(each), cost) for each, cost in costs.items() if _weighs(cost)]

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self.is_aside:
            return
        call = Call(module, self.counter.get_total_flops() - self.aside_flops)
        if self.under_way:
            self.under_way[-1].inner.append(call)
        self.under_way.append(call)
        self.calls.append(call)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.is_aside:
            return
        call = self.under_way.pop()
        call.forward_flops = self.counter.get_total_flops() - self.aside_flops - call.before
        call.backward_flops = sum(inner.backward_flops for inner in call.inner)
        if not call.inner:
            call.activities = sum(each.numel() for each in _tensors(output))
        if call.own_forward_flops:
            call.backward_flops = self._backward(module, args, kwargs)

    def _backward(self, module: nn.Module, args: Any, kwargs: Any) -> int:
        """FLOPs from the gradient of the output to those of the inputs and weights: of another pass, cut off from what
        is below, since a backward pass goes on through layers whose weights it meets again."""
        before, self.is_aside = self.counter.get_total_flops(), True
        leaves = {id(each): each.detach().requires_grad_(each.requires_grad) for each in _tensors((args, kwargs))}

        def cut(leaf: Any) -> Any:
            return leaves[id(leaf)].clone() if id(leaf) in leaves else leaf  # a clone may be written into

        args, kwargs = tree_map(cut, (args, kwargs))
        outputs = [each for each in _tensors(module.forward(*args, **kwargs)) if each.requires_grad]
        wanted = [each for each in (*leaves.values(), *module.parameters()) if each.requires_grad]
        forward = self.counter.get_total_flops()
        if outputs and wanted:
            torch.autograd.grad(outputs, wanted, [torch.ones_like(each) for each in outputs], allow_unused=True)
        self.is_aside = False
        self.aside_flops += self.counter.get_total_flops() - before
        return self.counter.get_total_flops() - forward

    def _owned(self) -> dict[nn.Module, int]:
        """Parameters of each module that are in none of the modules that it calls; shared ones count once."""
        owners = {parameter: call.module for call in self.calls for parameter in call.module.parameters()}
        owned: dict[nn.Module, int] = {}
        for parameter, owner in owners.items():
            owned[owner] = owned.get(owner, 0) + parameter.numel()
        return owned


def kind_of(module: nn.Module) -> Kind:
    """The sort of layer that a module is; attention in any form, by its class's name."""
    if "Attention" in type(module).__name__:
        return "attention"
    return next((kind for kind, types in KINDS.items() if isinstance(module, types)), "other")


def _weighs(cost: Cost) -> bool:
    return cost.parameters > 0 or cost.forward_flops > 0


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _convolution_backward(dy: Any, x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """Each of its two gradients takes as many FLOPs as the forward pass; torch's own formula forgets the groups.

    dy, x, weight: shapes. rest: what `aten.convolution_backward` takes besides.
    """
    is_transposed, (to_input, to_weight, _to_bias) = rest[4], rest[7]
    places = prod(x[2:] if is_transposed else dy[2:])
    one: int = 2 * x[0] * places * prod(weight)
    return one * (int(to_input) + int(to_weight))
