"""One model on one device: loss and gradient over a flat parameter vector.

The parameters are views of a flat vector that somebody else owns and may exchange at any step; the backward pass
writes each gradient straight to its place in a flat vector of the caller's (a slot of the transport's memory).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation

from trainers.data.batches import Batch
from trainers.models.dropout import DrawContext
from trainers.store.layout import Layout


@dataclass
class Sink:
    """Where the gradients of the backward pass under way go."""

    views: dict[int, Tensor]
    """id of a parameter -> its view of the caller's flat vector."""
    written: set[int]

    def add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Write a gradient that was computed elsewhere; one of a parameter used twice is added."""
        view = self.views[id(parameter)]
        if id(parameter) in self.written:
            view.add_(gradient)
        else:
            view.copy_(gradient)
        self.written.add(id(parameter))


class _LinearIntoSink(torch.autograd.Function):
    """A fully connected layer whose backward pass multiplies straight into the flat gradient vector.

    Autograd would allocate the product and copy it: for a layer of 3 M parameters, 12 MB written and read again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, replica: "Replica") -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.parameters, ctx.replica = (weight, bias), replica
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = upstream  # (..., outputs)
        x, weight = ctx.saved_tensors
        sink, (parameter, bias) = ctx.replica.sink, ctx.parameters
        rows, inputs = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        view = sink.views[id(parameter)]
        if id(parameter) in sink.written:
            view.addmm_(rows.t(), inputs)
        elif view.device == rows.device:
            torch.mm(rows.t(), inputs, out=view)
        else:
            view.copy_(rows.t().mm(inputs))
        sink.written.add(id(parameter))
        if bias is not None:
            sink.add(bias, rows.sum(0))
        dx = dy.matmul(weight) if ctx.needs_input_grad[0] else None
        return dx, None, None, None


class Replica:
    """A model whose parameters and buffers are handed to it for each call."""

    def __init__(self, model: nn.Module, layout: Layout, device: torch.device, draws: DrawContext) -> None:
        self.model = model.to(device).train()
        self.layout = layout
        self.device = device
        self.draws = draws
        self.parameters = dict(self.model.named_parameters())
        self.on_device: Tensor | None = None  # (P,) copy of the parameters where the caller's lie on another device
        self.views: dict[int, list[Tensor]] = {}  # address of a flat vector -> its views, in the layout's order
        self.initial_buffers = {n: b.detach().clone() for n, b in model.named_buffers() if b.is_floating_point()}
        self.buffers: dict[int, dict[str, Tensor]] = {}  # virtual rank -> batch-norm buffers by name
        self.sink = Sink({}, set())
        for parameter in self.parameters.values():
            parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
        for module in self.model.modules():
            if type(module) is nn.Linear:
                module.forward = MethodType(_into_sink(self), module)  # type: ignore[method-assign]

    def gradient(self, params: Tensor, batch: Batch, into: Tensor, scale: float = 1.0, virtual_rank: int = 0) -> float:
        """Write `scale` times the gradient of the loss summed over the minibatch to `into`; return that sum.

        Args:
            params: (P,) float32, only read.
            batch: One virtual worker's minibatch.
            into: (P,) float32, overwritten.
            scale: 1 for a sum over examples, 1/len(batch) for their mean.
            virtual_rank: Whose batch-norm buffers are read and updated.
        """
        self._point_to(params)
        self._swap_buffers(virtual_rank)
        self._prepare_draws(batch, virtual_rank)
        views = self._views(into)
        self.sink.views = {id(self.parameters[n]): v for n, v in zip(self.layout.names, views, strict=True)}
        self.sink.written.clear()
        images, labels = batch.images.to(self.device), batch.labels.to(self.device)
        loss = F.cross_entropy(self.model(images), labels, reduction="sum")
        loss.backward(torch.full_like(loss, scale))  # type: ignore[no-untyped-call]
        for parameter, view in self.sink.views.items():
            if parameter not in self.sink.written:
                view.zero_()
        return float(loss.detach())

    @contextmanager
    def evaluating(self, params: Tensor, buffers: dict[str, Tensor]) -> Iterator[nn.Module]:
        """The model in evaluation mode with these parameters (P,) and buffers."""
        self._point_to(params)
        own = dict(self.model.named_buffers())
        for name, value in buffers.items():
            own[name].copy_(value)
        self.model.eval()
        try:
            with torch.no_grad():
                yield self.model
        finally:
            self.model.train()

    def float_buffers(self, virtual_rank: int) -> dict[str, Tensor]:
        """The batch-norm buffers of a virtual rank, by name; those of the model as built where it has none yet."""
        if virtual_rank not in self.buffers:
            self.buffers[virtual_rank] = {name: buffer.clone() for name, buffer in self.initial_buffers.items()}
        return self.buffers[virtual_rank]

    def initial_params(self) -> Tensor:
        """(P,) float32 on the CPU: the parameters as the model was built with them."""
        return self.layout.flatten({name: p.detach().cpu() for name, p in self.parameters.items()})

    def _swap_buffers(self, virtual_rank: int) -> None:
        for name, value in self.float_buffers(virtual_rank).items():
            module, _, leaf = name.rpartition(".")
            self.model.get_submodule(module)._buffers[leaf] = value

    def _prepare_draws(self, batch: Batch, virtual_rank: int) -> None:
        """Dropout layers draw by example; a layer that only knows torch's generator gets a stream of its own for the
        epoch, the minibatch's first example and the virtual rank."""
        self.draws.set(batch.epoch, batch.examples)
        first = int(batch.examples[0]) if len(batch.examples) else 0
        torch.manual_seed(hash((self.draws.seed, batch.epoch, first, virtual_rank)) & (2**63 - 1))

    def _point_to(self, params: Tensor) -> None:
        if params.device != self.device:
            if self.on_device is None:
                self.on_device = torch.empty(self.layout.numel, device=self.device)
            params = self.on_device.copy_(params)
        for name, view in zip(self.layout.names, self._views(params), strict=True):
            self.parameters[name].data = view

    def _views(self, flat: Tensor) -> list[Tensor]:
        views = self.views.get(flat.data_ptr())
        if views is None:
            if len(self.views) > 64:  # vectors come and go with the versions that are fetched
                self.views.clear()
            views = self.views[flat.data_ptr()] = self.layout.views(flat)
        return views

    def _take(self, parameter: Tensor) -> None:
        """Autograd's hook: move a gradient to the sink. It is None for a weight that the sink has already."""
        if parameter.grad is not None:
            assert isinstance(parameter, nn.Parameter)
            self.sink.add(parameter, parameter.grad)
            parameter.grad = None


def _into_sink(replica: Replica) -> Callable[[nn.Linear, Tensor], Tensor]:
    def forward(module: nn.Linear, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return F.linear(x, module.weight, module.bias)
        return _LinearIntoSink.apply(x, module.weight, module.bias, replica)  # type: ignore[no-any-return]

    return forward
