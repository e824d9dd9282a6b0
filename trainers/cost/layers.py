"""Each layer's share of a model's computation, parameters and activities (paper 1, section 3), by counting.

A model of images is called once on the meta device, which computes shapes and no numbers: a count takes seconds,
whatever the size of the model, and the same everywhere. For other data the task calls it, on the first examples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from trainers import user_code
from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.divided import Divided
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.cost.figures import ImageCost, Images, Kind, ModelCost, model_cost
from trainers.cost.memory import free_bytes
from trainers.data.datasets import open_dataset
from trainers.errors import SpecRejected
from trainers.models.networks.projected import Projected, Projection
from trainers.models.registry import build_model
from trainers.optim.members import freeze
from trainers.optim.optimizers.groups import GroupSpec
from trainers.spec import ModelSpec, TrainSpec
from trainers.tasks.registry import build_task_model, collate_of, collates, task_for

BATCH = 2
"""Examples in the call: batch normalisation refuses to train on a single one."""

PEAK = 100
"""Memory that a model may need for one image, in multiples of the image's size; VGG and ResNets need about 50."""

KINDS: dict[Kind, tuple[type[nn.Module], ...]] = {
    "convolution": (nn.modules.conv._ConvNd,),
    "fully connected": (nn.Linear, Projected, Projection),
    "normalisation": (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm),
}


@dataclass
class ModuleCall:
    """One call of a module, forward and backward, including the modules that it calls."""

    module: nn.Module
    flops_before: int
    """FLOPs of forward passes before this call."""
    forward_flops: int = 0
    backward_flops: int = 0
    activities: int = 0
    """Elements of its output; 0 if it only calls other modules, which are counted instead."""
    inner: list["ModuleCall"] = field(default_factory=list)

    @property
    def own_forward_flops(self) -> int:
        """Forward FLOPs without those of the modules that it calls."""
        return self.forward_flops - sum(call.forward_flops for call in self.inner)

    @property
    def own_backward_flops(self) -> int:
        """Backward FLOPs without those of the modules that it calls."""
        return self.backward_flops - sum(call.backward_flops for call in self.inner)


def profile_model(
    model: ModelSpec,
    images: Images,
    code: str | None = None,
    groups: Sequence[GroupSpec] = (),
    algorithm: AlgorithmConfig | None = None,
    num_workers: int = 1,
) -> ModelCost:
    """The cost of a model, layer by layer.

    Args:
        code: The folder of a model of the user's own.
        groups: Of its parameters; those of frozen ones have no gradient.
        algorithm: Whose workers have it; None: it is counted as it is built.
        num_workers: How many share out what this algorithm divides.

    Raises:
        SpecRejected: The model cannot be built for these images, or not be called without data, or a group has no
            parameter.
    """
    needs, free = PEAK * 4 * prod(images.shape), free_bytes(torch.device("cpu"))
    if needs > free:
        problem = f"may take {needs / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free; use smaller images"
        raise SpecRejected(f"one image of {'x'.join(map(str, images.shape))} {problem}")
    with user_code.on_path(code):
        module = build_model(model, images.classes, images.shape, seed=0)
        divided = None if algorithm is None else _as_computed(module, algorithm, num_workers)
        freeze(module.to("meta"), groups)
        try:
            counted = Count().layers(module, lambda: module(torch.zeros(BATCH, *images.shape, device="meta")))
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            problem = f"its passes need more than shapes: {str(error).splitlines()[0]}"
            raise SpecRejected(f"model: {model.name} cannot be counted without data, {problem}") from error
    example = f"one image of {'x'.join(map(str, images.shape))} and {images.classes} classes"
    return model_cost(model.name, example, images, counted, _elements(module), divided)


def profile_spec(spec: TrainSpec) -> ModelCost:
    """The cost of a spec's model for an example of its data: these are opened, and the task computes the loss of the
    first two.

    Raises:
        SpecRejected: As in a run, for data, task or model.
    """
    with user_code.on_path(spec.code), open_dataset(spec.data, spec.seed) as dataset:
        task = task_for(spec.task, spec.loss, dataset)
        if collates(task):
            dataset.collate_by(partial(collate_of, spec.task, spec.loss, dataset.facts))
        model = build_task_model(task, spec.model, spec.seed)
        divided = _as_computed(model, spec.algorithm, spec.workers.count)
        freeze(model, spec.optimizer.groups)
        first = np.arange(min(BATCH, dataset.num_train))
        batch = next(iter(dataset.batches([(0, first)])))
        try:
            with sdpa_kernel(SDPBackend.MATH):  # its products are counted, those of fused kernels are not
                counted = Count(len(batch)).layers(model, lambda: task.loss(model, batch.data))
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise SpecRejected(f"model: {spec.model.name} does not train on {spec.data.name}: {error}") from error
        example = f"one example of {spec.data.name}, {dataset.facts.words}"
        return model_cost(spec.model.name, example, None, counted, _elements(model), divided)


class Count:
    """Counts one forward pass of a model, and separately, for each call in it, the backward pass of that call alone."""

    def __init__(self, batch: int = BATCH) -> None:
        """batch: Examples in the call."""
        self.batch = batch
        self.counter = FlopCounterMode(
            display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
        )
        self.backward_pass_flops = 0  # counted so far, and not part of the forward pass
        self.in_backward = False
        self.stack: list[ModuleCall] = []  # the calls that have not returned
        self.calls: list[ModuleCall] = []  # in the order in which they began

    def layers(self, module: nn.Module, run: Callable[[], object]) -> list[tuple[str, Kind, ImageCost]]:
        """Name, kind and cost per example of every module that computes products itself or has parameters of its own.

        run: Calls the module.
        """
        hooks = [each.register_forward_pre_hook(self._enter) for each in module.modules()]
        hooks += [each.register_forward_hook(self._leave, with_kwargs=True) for each in module.modules()]
        with self.counter:
            run()
        for hook in hooks:
            hook.remove()
        owned = self._owned()
        costs = {call.module: ImageCost(parameters=owned.get(call.module, 0)) for call in self.calls}
        for call in self.calls:
            costs[call.module] += ImageCost(
                forward_flops=call.own_forward_flops // self.batch,
                backward_flops=call.own_backward_flops // self.batch,
                activities=call.activities // self.batch,
            )
        names = {each: name for name, each in module.named_modules()}
        return [(names[each], kind_of(each), cost) for each, cost in costs.items() if _has_cost(cost)]

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self.in_backward:
            return
        call = ModuleCall(module, self.counter.get_total_flops() - self.backward_pass_flops)
        if self.stack:
            self.stack[-1].inner.append(call)
        self.stack.append(call)
        self.calls.append(call)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self.in_backward:
            return
        call = self.stack.pop()
        call.forward_flops = self.counter.get_total_flops() - self.backward_pass_flops - call.flops_before
        call.backward_flops = sum(inner.backward_flops for inner in call.inner)
        if not call.inner or isinstance(module, Projected):
            call.activities = sum(each.numel() for each in _tensors(output))
        if call.own_forward_flops:
            call.backward_flops = self._backward(module, args, kwargs)

    def _backward(self, module: nn.Module, args: Any, kwargs: Any) -> int:
        """FLOPs of the gradients of a call's inputs and weights.

        They are counted in a second pass of the module on detached inputs, because a backward pass would continue into
        the layers below.
        """
        before, self.in_backward = self.counter.get_total_flops(), True
        leaves = {id(each): each.detach().requires_grad_(each.requires_grad) for each in _tensors((args, kwargs))}

        def detached(leaf: Any) -> Any:
            return leaves[id(leaf)].clone() if id(leaf) in leaves else leaf  # a clone, since layers may work in place

        args, kwargs = tree_map(detached, (args, kwargs))
        outputs = [each for each in _tensors(module.forward(*args, **kwargs)) if each.requires_grad]
        wanted = [each for each in (*leaves.values(), *module.parameters()) if each.requires_grad]
        forward = self.counter.get_total_flops()
        if outputs and wanted:
            torch.autograd.grad(outputs, wanted, [torch.ones_like(each) for each in outputs], allow_unused=True)
        self.in_backward = False
        self.backward_pass_flops += self.counter.get_total_flops() - before
        return self.counter.get_total_flops() - forward

    def _owned(self) -> dict[nn.Module, int]:
        """Parameters of each module that belong to none of the modules that it calls; shared ones count once."""
        owners = {parameter: call.module for call in self.calls for parameter in call.module.parameters()}
        owned: dict[nn.Module, int] = {}
        for parameter, owner in owners.items():
            owned[owner] = owned.get(owner, 0) + parameter.numel()
        return owned


def _as_computed(model: nn.Module, algorithm: AlgorithmConfig, num_workers: int) -> Divided | None:
    """Put the layers that an algorithm's workers compute into a model that was just built; returns what of it they
    share out.

    Raises:
        SpecRejected: As in a run.
    """
    algorithm.replace_layers(model, as_built=True)
    divided = algorithm.divided(model, num_workers)
    connect = algorithm.connect if isinstance(algorithm, HybridConfig) else None
    if connect is not None and connect.rank is None:  # a run has whole layers, and computes blocks of them
        connect.model_copy(update={"rank": 0}).replace_layers(model, as_built=True)
    return divided


def kind_of(module: nn.Module) -> Kind:
    """The kind of layer that a module is; attention of any form is recognised by the name of its class."""
    if "Attention" in type(module).__name__:
        return "attention"
    return next((kind for kind, types in KINDS.items() if isinstance(module, types)), "other")


def _elements(module: nn.Module) -> list[int]:
    return [parameter.numel() for parameter in module.parameters() if parameter.requires_grad]


def _has_cost(cost: ImageCost) -> bool:
    return cost.parameters > 0 or cost.forward_flops > 0


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _convolution_backward(dy: Any, x: Any, weight: Any, *rest: Any, **_: Any) -> int:
    """FLOPs of the backward pass: each of its two gradients takes as many as the forward pass. torch's own formula
    ignores groups.

    dy, x, weight: shapes. rest: the other arguments of `aten.convolution_backward`.
    """
    is_transposed, (to_input, to_weight, _to_bias) = rest[4], rest[7]
    places = prod(x[2:] if is_transposed else dy[2:])
    one: int = 2 * x[0] * places * prod(weight)
    return one * (int(to_input) + int(to_weight))
