"""Any `torch.optim.Optimizer` as an update rule: its state is kept in vectors beside the parameters."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers import user_code
from trainers.errors import SpecRejected
from trainers.optim.buffers import Buffers
from trainers.optim.rule import ParameterRule, ParameterStep

SHAPES: tuple[tuple[int, ...], ...] = ((3,), (3, 4), (3, 4, 2, 2))
"""Of the parameters with which a class is tried: some keep other states for matrices than for vectors."""

States = dict[str, Any]
"""Name -> a tensor, or a number."""


class TorchRule(ParameterRule):
    """One step of an optimizer that is made for it, on one parameter.

    A state of k numbers lies in the first k of the parameter's elements in its vector. Before the first update they are
    infinite, and the class begins as it does by itself.
    """

    first_value = math.inf

    def __init__(self, kind: type[torch.optim.Optimizer], kwargs: Mapping[str, Any]) -> None:
        """Raises SpecRejected: the class does not take the arguments, or keeps something that cannot be kept."""
        self.kind, self.kwargs = kind, dict(kwargs)
        self.takes_decay = "weight_decay" in inspect.signature(kind).parameters
        self.forms: dict[tuple[int, ...], States] = {}  # shape of a parameter -> states like its
        self.state_names = tuple(sorted(set[str]().union(*map(self._form, SHAPES))))

    def apply(self, current: Buffers, g: Tensor, following: Buffers, step: ParameterStep) -> None:
        form = self._form(step.parameter.shape)
        begun = {name: _taken(current.state[name], like) for name, like in form.items()}
        has_begun = all(bool(current.state[name][0].isfinite()) for name in form)
        following.params.copy_(current.params)
        parameter = nn.Parameter(step.parameter.of(following.params))
        parameter.grad = step.parameter.of(g.clone())
        optimizer = self._made(parameter, step.lr, step.decay)
        if has_begun:
            optimizer.state[parameter].update(begun)
        optimizer.step()
        for name, vector in following.state.items():
            vector.copy_(current.state[name])
            if name in form:
                _put(optimizer.state[parameter][name], vector)

    def _made(self, parameter: nn.Parameter, lr: float, decay: float) -> torch.optim.Optimizer:
        if decay and not self.takes_decay:
            raise SpecRejected(f"optimizer.weight_decay: {self.kind.__name__} has none; leave it out")
        options = self.kwargs | {"lr": lr} | ({"weight_decay": decay} if self.takes_decay else {})
        return self.kind([parameter], **options)

    def _form(self, shape: tuple[int, ...]) -> States:
        """States as they are after a first step of a parameter of this shape."""
        if shape not in self.forms:
            self.forms[shape] = self._tried(nn.Parameter(torch.ones(shape)))
        return self.forms[shape]

    def _tried(self, parameter: nn.Parameter) -> States:
        name = self.kind.__name__
        try:
            optimizer = self._made(parameter, 0.001, 0.0)
            before = _group(optimizer)
            parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        except (TypeError, ValueError, RuntimeError) as error:
            if "'closure'" in str(error):
                raise SpecRejected(
                    f"optimizer.name: {name} needs a closure that computes the loss again within a step, and the "
                    "gradients of all workers are added up once; take another class"
                ) from error
            raise SpecRejected(f"optimizer.kwargs: {name} does not make a step with them: {error}") from error
        if _group(optimizer) != before:
            raise SpecRejected(f"optimizer.optimizer: {name} changes its own options as it goes, which are not kept")
        found = {key: value for key, value in optimizer.state[parameter].items() if value is not None}
        for key, value in found.items():
            if not isinstance(value, int | float) and not (
                isinstance(value, Tensor) and value.is_floating_point() and value.numel() <= parameter.numel()
            ):
                raise SpecRejected(
                    f"optimizer.optimizer: {name} keeps a state {key!r} that is no number, and no tensor of real "
                    "numbers of the parameter's size at most"
                )
        return found


def _group(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}


def _taken(vector: Tensor, like: Any) -> Any:
    """A state, as its class keeps it."""
    if not isinstance(like, Tensor):
        return type(like)(vector[0].item()) if vector[0].isfinite() else like
    device = like.device if like.ndim == 0 else vector.device  # counts are kept on the CPU
    return vector[: like.numel()].clone().view(like.shape).to(device, like.dtype)


def _put(state: Any, into: Tensor) -> None:
    """Keep a state; elements beyond its own are 0."""
    into.zero_()
    numbers = state.detach().reshape(-1) if isinstance(state, Tensor) else torch.tensor([float(state)])
    into[: len(numbers)].copy_(numbers)


def torch_class(name: str) -> type[torch.optim.Optimizer]:
    """The class behind `module:Class`.

    Raises:
        SpecRejected: It is no optimizer.
        UserCodeFailed: There is no such class.
    """
    found = user_code.resolve(name)
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise SpecRejected(f"optimizer.optimizer: {name} is no torch.optim.Optimizer; name a subclass of it")
    return found
