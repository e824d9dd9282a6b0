"""One model on one device: loss and gradient over a flat parameter vector.

The parameters are views of a flat vector that the caller owns and may replace at any step. The backward pass writes
each gradient directly into a flat vector of the caller's, for instance a slot in the transport's memory.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from trainers.data.batches import Batch, on_device
from trainers.models.dropout import DrawContext
from trainers.models.layout import Layout
from trainers.models.losses import LabelLoss
from trainers.models.module_buffers import ModuleBuffers, Named
from trainers.models.names import PrecisionName
from trainers.models.objective import Loss, Objective, Supervised, Total, loss_of
from trainers.models.passes.before_use import BeforeUse
from trainers.models.passes.compiled import Cost, compiled
from trainers.models.passes.deterministic import is_deterministic, strictly
from trainers.models.passes.precision import REDUCED, answer_in_float32, computing_in, in_float32
from trainers.models.products.choice import Choice
from trainers.models.products.multiply import Products
from trainers.models.products.sink import Sink, into_sink
from trainers.spans import span

HOOKED = 64 * 1024
"""Elements of a parameter from which on its gradient is moved on a CPU while it is in the cache, so that its memory is
free for the layers below; the others wait for the end of the backward pass."""


UNKNOWN = -1
"""A virtual rank whose buffers nobody keeps."""


class Replica:
    """A model whose parameters and buffers are set for each call."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        device: torch.device,
        draws: DrawContext,
        objective: Objective | None = None,
        skips: bool = False,
        precision: PrecisionName = "float32",
        compiles: bool = False,
    ) -> None:
        """objective: by default the cross entropy of logits with labels. skips: whether minibatches may lack examples
        that could not be read. precision: in which the model computes. compiles: whether it is compiled to train."""
        self.model = model.to(device).train()
        self.precision = precision
        self.loss_scale = 1.0  # by what the algorithm has losses multiplied before they go backward (float16)
        self.layout = layout
        self.device = device
        self.draws = draws
        self.objective = objective or LabelLoss()
        self.skips = skips
        self.parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.on_device: Tensor | None = None  # (P,) copy of the parameters, if the caller's are on another device
        self.gradient_on_device: Tensor | None = None  # (P,) the gradient before it goes there
        self.views: dict[int, dict[str, Tensor]] = {}  # address of a flat vector -> its views, in the layout's order
        self.module_buffers = ModuleBuffers(self.model)
        self.buffers: dict[int, Named] = {}  # virtual rank -> buffers by name
        self.is_as_built = True  # until the parameters first point to the caller's memory
        self.sink = Sink({}, set())
        self.products = Products()
        self.names = {id(parameter): name for name, parameter in self.parameters.items()}
        self.on_use: Callable[[str], None] | None = (
            None  # called with a parameter's name before the forward pass uses it
        )
        self.hooked: set[str] = set()  # parameters whose gradients are taken from autograd one by one
        if device.type == "cpu":
            self._hook(HOOKED)
        if precision in REDUCED:
            answer_in_float32(self.model)
        self.compiles = compiles
        self.compiled: Callable[..., Any] | None = None  # once it has been trained
        self.costs = False  # whether its loss is compiled with it
        self.is_strict = None if device.type == "cuda" else False  # whether kernels without a deterministic form raise
        self.compiled_s = 0.0  # what its first minibatch took
        if device.type == "cpu" and precision not in REDUCED and not compiles:  # products of our own are of float32
            for module in self.model.modules():
                if type(module) is nn.Linear:
                    module.forward = MethodType(into_sink(self), module)  # type: ignore[method-assign]

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not trained, by name."""
        return {name: p.detach() for name, p in self.model.named_parameters() if not p.requires_grad}

    @property
    def weight_per_example(self) -> float | None:
        """What each example of a minibatch weighs, if that is known beforehand."""
        return None if self.skips else self.objective.weight_per_example

    def twin(self) -> "Replica":
        """Another replica of the same model with the same objective, sharing the buffers of its virtual ranks."""
        model, draws = copy.deepcopy((self.model, self.draws))
        twin = Replica(model, self.layout, self.device, draws, self.objective, self.skips, self.precision)
        twin.buffers, twin.products = self.buffers, self.products
        twin.module_buffers.initial = self.module_buffers.initial
        return twin

    def multiply_as(self, choice: Choice) -> None:
        """Have the products of fully connected layers made as this says."""
        self.products = Products(choice)

    def gradient(
        self,
        params: Tensor,
        batch: Batch,
        into: Tensor,
        mean: bool = False,
        virtual_rank: int = 0,
        on_ready: Callable[[str], None] | None = None,
        on_weight: Callable[[float], None] | None = None,
    ) -> Total:
        """Write the gradient of the loss, summed over the minibatch, to `into`; return the summed loss and its weight.

        The gradient is that of the loss times `loss_scale`. On a GPU, nothing waits for it where `into` is there too.

        Args:
            params: (P,) float32, only read.
            batch: One virtual worker's minibatch.
            into: (P,) float32, overwritten.
            mean: Divide the gradient by the weight of the minibatch.
            virtual_rank: The virtual worker whose buffers are read and updated.
            on_ready: Called with each parameter's name once its gradient in `into` is complete, while the backward pass
                continues through the layers below; where `into` is on another device, after all of them.
            on_weight: Called with the weight of the minibatch before the backward pass.
        """
        if not len(batch):
            return self._nothing(into, on_ready, on_weight)
        if self.is_strict is None:
            self.is_strict = self._can_be_strict(params, batch)
        with strictly(self.is_strict):
            return self._gradient(params, batch, into, mean, virtual_rank, on_ready, on_weight)

    def _can_be_strict(self, params: Tensor, batch: Batch) -> bool:
        """Whether all kernels of the model have a deterministic form, by a pass that is thrown away."""
        self.is_strict = False
        found = is_deterministic(lambda: self.gradient(params, batch, torch.empty_like(params), virtual_rank=UNKNOWN))
        for parameter in self.parameters.values():
            parameter.grad = None
        self.buffers.pop(UNKNOWN, None)
        return found

    def _gradient(
        self,
        params: Tensor,
        batch: Batch,
        into: Tensor,
        mean: bool,
        virtual_rank: int,
        on_ready: Callable[[str], None] | None,
        on_weight: Callable[[float], None] | None,
    ) -> Total:
        self.point_to_vector(params)
        with span("forward"), self._at(batch, virtual_rank):
            loss = self._loss(batch)
            if loss.total.dtype in REDUCED.values():
                loss = loss.of(in_float32(loss.total))
        if on_weight is not None:
            on_weight(loss.weight)
        scale = self.loss_scale * (scale_of(loss.weight) if mean else 1.0)
        if into.device == self.device:
            self._backward_into(loss.total, scale, into, on_ready)
        else:  # in one piece, for each copy waits for the device
            if self.gradient_on_device is None:  # zeros, for the gaps of the layout are 0
                self.gradient_on_device = torch.zeros(self.layout.numel, device=self.device)
            self._backward_into(loss.total, scale, self.gradient_on_device, None)
            into.copy_(self.gradient_on_device)
            if on_ready is not None:
                for name in reversed(self.layout.names):
                    on_ready(name)
        return Total.of(loss)

    def _loss(self, batch: Batch) -> Loss:
        """Of a minibatch in training; compiled with the model where it depends on nothing but tensors."""
        data, weight, each = on_device(batch.data, self.device), batch.weight, self.objective.weight_per_example
        if weight is None and each is not None:
            weight = each * len(batch)
        if self.compiles and self.compiled is None:
            self.costs = self.objective.is_traceable and weight is not None
            self.compiled = compiled(Cost(self.model, self.objective) if self.costs else self.model)
        if self.compiled is not None and self.costs:
            assert weight is not None
            return Loss(self.compiled(data), weight)
        loss = loss_of(self.objective, self.compiled or self.model, data)
        return loss if weight is None else Loss(loss.total, weight)

    def _nothing(
        self, into: Tensor, on_ready: Callable[[str], None] | None, on_weight: Callable[[float], None] | None
    ) -> Total:
        """Of a minibatch that has lost all its examples."""
        if on_weight is not None:
            on_weight(0.0)
        into.zero_()
        for name in reversed(self.layout.names) if on_ready is not None else ():
            on_ready(name)  # type: ignore[misc]
        return Total()

    def _backward_into(self, loss: Tensor, scale: float, into: Tensor, on_ready: Callable[[str], None] | None) -> None:
        # Not as the gradient to begin from: for any but none torch imports SymPy, which takes half a second.
        self.backward(loss if scale == 1 else loss * scale, None, self._views(into), on_ready)

    def forward(self, part: Callable[[Tensor], Tensor], batch: Batch, virtual_rank: int = 0) -> Tensor:
        """The output of `part`, which is the model or its first layers, for the inputs of a minibatch."""
        assert isinstance(self.objective, Supervised)
        inputs = self.objective.inputs(batch.data)
        with span("forward"), self._at(batch, virtual_rank):
            found: Tensor = in_float32(part(on_device(inputs, self.device)))
        return found

    def loss_of(self, outputs: Tensor, batch: Batch) -> Loss:
        """The loss of what the model made of a minibatch."""
        assert isinstance(self.objective, Supervised)
        with span("forward"), computing_in(self.precision, self.device):
            loss = self.objective.loss_of(outputs, on_device(batch.data, self.device))
        return loss.of(in_float32(loss.total))

    def backward(
        self,
        outputs: Tensor,
        gradient: Tensor | None,
        into: dict[str, Tensor],
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        """Write the gradients of the parameters named in `into`, from the gradient of `outputs` (of the same shape);
        None: from 1, of a single number."""
        if on_ready is not None:
            self._hook()
        self.sink.views = {id(self.parameters[name]): view for name, view in into.items()}
        self.sink.written.clear()
        self.sink.on_ready = on_ready
        with span("backward"):
            outputs.backward(gradient)  # type: ignore[no-untyped-call]
            self._take_rest(into)

    def _take_rest(self, into: dict[str, Tensor]) -> None:
        """What no hook took is copied in one call: one for each parameter costs a small model more than the copies, and
        on a GPU a launch each."""
        sink, found, targets = self.sink, list[Tensor](), list[Tensor]()
        for name, view in into.items():
            parameter = self.parameters[name]
            gradient = parameter.grad
            if gradient is not None and id(parameter) in sink.written:  # of a weight that is used twice
                sink.add(parameter, gradient)
                parameter.grad = None
            elif gradient is not None:
                found.append(gradient)
                targets.append(view)
                parameter.grad = None
            elif id(parameter) not in sink.written:
                view.zero_()
                if sink.on_ready is not None:
                    sink.on_ready(name)
        if found:
            torch._foreach_copy_(targets, found)

    def _hook(self, least: int = 0) -> None:
        """Take each gradient of at least so many elements from autograd as soon as it is complete."""
        for name, parameter in self.parameters.items():
            if parameter.numel() >= least and name not in self.hooked:
                self.hooked.add(name)
                parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def point_to(self, named: dict[str, Tensor]) -> None:
        """Make these parameters views of the caller's memory, on the replica's device."""
        self.is_as_built = False
        for name, view in named.items():
            self.parameters[name].data = view

    @contextmanager
    def evaluating(self, params: Tensor, buffers: Named) -> Iterator[nn.Module]:
        """The model in evaluation mode with these parameters (P,) and copies of these buffers; those that are left out
        are as built."""
        self.point_to_vector(params)
        whole = self.module_buffers.initial | buffers
        self.module_buffers.put({name: value.to(self.device, copy=True) for name, value in whole.items()})
        self.model.eval()
        try:
            with torch.no_grad(), computing_in(self.precision, self.device):
                yield self.model
        finally:
            self.model.train()

    def buffers_of(self, virtual_rank: int) -> Named:
        """The buffers of a virtual rank, by name; it starts with those of the model as built."""
        if virtual_rank not in self.buffers:
            self.buffers[virtual_rank] = {name: b.clone() for name, b in self.module_buffers.initial.items()}
        return self.buffers[virtual_rank]

    def state_of(self, named: Named) -> Named:
        """What the model's `state_dict` has, from parameters and buffers by the first of their names: what is shared
        stands under each of its names. A buffer that is left out is as built, a parameter too, if it is frozen."""
        state, names = self.model.state_dict(keep_vars=True), {id(p): n for n, p in self.model.named_parameters()}
        first = {name: names.get(id(value), name) for name, value in state.items()}
        aliases = self.module_buffers.aliases
        known = self.module_buffers.initial | self.frozen | named
        return {name: known[aliases.get(key, key)] for name, key in first.items() if aliases.get(key, key) in known}

    def initial_params(self) -> Tensor:
        """(P,) float32 on the CPU: the parameters with which the model was built."""
        assert self.is_as_built
        return self.layout.flatten({name: p.detach().cpu() for name, p in self.parameters.items()})

    @contextmanager
    def _at(self, batch: Batch, virtual_rank: int) -> Iterator[None]:
        """A forward pass of a virtual worker's minibatch."""
        buffers = self.buffers_of(virtual_rank)
        self.module_buffers.put(buffers)
        self._prepare_draws(batch, virtual_rank)
        before_use = nullcontext() if self.on_use is None else BeforeUse(self.names, self.on_use)
        if self.on_use is not None and self.compiles:  # what is compiled uses all of them at once
            for name in self.layout.names:
                self.on_use(name)
            before_use = nullcontext()
        with before_use, computing_in(self.precision, self.device):
            yield
        self.module_buffers.taken(buffers)

    def _prepare_draws(self, batch: Batch, virtual_rank: int) -> None:
        """Set what random draws of the next forward pass depend on.

        Dropout layers draw by example. For layers that use torch's generator it is seeded by epoch, the minibatch's
        first example and virtual rank.
        """
        self.draws.set(batch.epoch, batch.examples)
        first = int(batch.examples[0]) if len(batch.examples) else 0
        seed = hash((self.draws.seed, batch.epoch, first, virtual_rank)) & (2**63 - 1)
        # As `torch.manual_seed` without asking for all kinds of devices, which costs more than a small layer.
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def point_to_vector(self, params: Tensor) -> None:
        """Make the parameters views of `params`, (P,); on another device they are copied first."""
        if params.device != self.device:
            if self.on_device is None:
                self.on_device = torch.empty(self.layout.numel, device=self.device)
            params = self.on_device.copy_(params)
        self.point_to(self._views(params))

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        views = self.views.get(flat.data_ptr())
        if views is None:
            if len(self.views) > 64:  # every fetched version may be in other memory
                self.views.clear()
            views = self.views[flat.data_ptr()] = dict(zip(self.layout.names, self.layout.views(flat), strict=True))
        return views

    def _take(self, parameter: Tensor) -> None:
        """Autograd's hook, called once per parameter when its gradient is complete: move the gradient to the sink.

        The gradient is None for a weight that was written into the sink directly.
        """
        if parameter.grad is not None:
            assert isinstance(parameter, nn.Parameter)
            self.sink.add(parameter, parameter.grad)
            parameter.grad = None
        if self.sink.on_ready is not None and id(parameter) in self.sink.written:
            self.sink.on_ready(self.names[id(parameter)])


def scale_of(weight: float) -> float:
    """The factor that makes a mean of a sum over so many units; where there are none, the gradient is 0 as it is."""
    return 1 / weight if weight else 1.0
