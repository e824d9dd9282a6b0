"""Which layer takes how much of a step: forward and backward, in the order in which gradients appear."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from trainers.cost.timing import wait_for
from trainers.cost.workload import LayerSeconds

Mark = tuple[str, float]
"""A layer, and when it was reached."""


@dataclass
class LayerMarks:
    """Of one step."""

    device: torch.device
    forward: list[Mark] = field(default_factory=list)
    """When each layer was called."""
    backward: list[Mark] = field(default_factory=list)
    """When the gradient of what it was called with was complete."""

    def seconds(self, begun_s: float, turned_s: float, ended_s: float) -> dict[str, LayerSeconds]:
        """Of each layer: what has no parameters counts to the layer before it. A step began to compute, turned back
        and ended then."""
        forward, backward = defaultdict[str, float](float), defaultdict[str, float](float)
        called = [mark for mark in self.forward if mark[1] <= turned_s]  # not again, to recompute activities
        if not called:
            return {}
        edges = [begun_s, *(at for _, at in called[1:]), turned_s]
        for (name, _), since, until in zip(called, edges, edges[1:], strict=False):
            forward[name] += until - since
        since = turned_s
        for name, at in self.backward:
            backward[name] += at - since
            since = at
        backward[called[0][0]] += ended_s - since  # nobody asks for the gradient of the examples
        return {name: LayerSeconds(forward_s=forward[name], backward_s=backward[name]) for name in forward}


@contextmanager
def marking(model: nn.Module, device: torch.device) -> Iterator[LayerMarks]:
    """Mark when the layers that have parameters of their own, and no layers in them, are reached."""
    marks, hooks = LayerMarks(device), []

    def mark(into: list[Mark], name: str) -> None:
        wait_for(device)
        into.append((name, time.perf_counter()))

    for name, module in model.named_modules():
        if any(True for _ in module.children()) or not any(p.requires_grad for p in module.parameters()):
            continue

        def enter(_: nn.Module, inputs: tuple[object, ...], name: str = name) -> None:
            mark(marks.forward, name)
            first = inputs[0] if inputs else None
            if isinstance(first, Tensor) and first.requires_grad:
                first.register_hook(lambda _: mark(marks.backward, name))  # type: ignore[no-untyped-call]

        hooks.append(module.register_forward_pre_hook(enter))
    try:
        yield marks
    finally:
        for hook in hooks:
            hook.remove()


def medians(steps: Sequence[dict[str, LayerSeconds]]) -> dict[str, LayerSeconds]:
    """Of each layer over the steps that have it."""
    names = dict.fromkeys(name for step in steps for name in step)
    found = {name: [step[name] for step in steps if name in step] for name in names}
    return {
        name: LayerSeconds(
            forward_s=median(each.forward_s for each in those), backward_s=median(each.backward_s for each in those)
        )
        for name, those in found.items()
    }
