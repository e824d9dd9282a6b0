"""Blocks of a model whose activations are computed again in the backward pass instead of being kept: torch's activation
checkpoints (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"), with the bits of a model without them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainers.errors import SpecRejected
from trainers.models.dropout import ExampleDropout

FIELD = "model.checkpoint_activations"
LISTS = (nn.ModuleList, nn.Sequential)


class _AsBefore(AbstractContextManager[None]):
    """The second forward pass of a block, with the dropout masks of the first. It begins with the buffers with which
    that began, and leaves those alone that it left: running statistics move once."""

    def __init__(self, block: nn.Module) -> None:
        """Made where the first pass begins."""
        self.calls = [(m, m.next_call) for m in block.modules() if isinstance(m, ExampleDropout)]
        buffers = [(m, leaf, b) for m in block.modules() for leaf, b in m._buffers.items() if b is not None]
        self.buffers = [(module, leaf, buffer.clone()) for module, leaf, buffer in buffers]

    def __enter__(self) -> None:
        self.calls = [self._turned(dropout, call) for dropout, call in self.calls]
        self.buffers = [self._swapped(*place) for place in self.buffers]

    def __exit__(self, *_: object) -> None:
        self.__enter__()

    @staticmethod
    def _turned(dropout: ExampleDropout, call: int) -> tuple[ExampleDropout, int]:
        now, dropout.next_call = dropout.next_call, call
        return dropout, now

    @staticmethod
    def _swapped(module: nn.Module, leaf: str, buffer: torch.Tensor) -> tuple[nn.Module, str, torch.Tensor]:
        now, module._buffers[leaf] = module._buffers[leaf], buffer
        assert now is not None
        return module, leaf, now


def recompute(model: nn.Module, which: bool | Sequence[str]) -> None:
    """Have these blocks keep nothing but their inputs: true: those that repeat; or the modules whose names match.

    Raises:
        SpecRejected: There are none.
    """
    for block in _repeated(model) if which is True else _named(model, which or ()):
        block.forward = partial(_forward, block, block.forward)


def _forward(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)

    def passes() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _AsBefore(block)

    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=True, context_fn=passes, **kwargs)


def _repeated(model: nn.Module) -> list[nn.Module]:
    """Children of lists that have layers of their own, where there are several of their class."""
    lists = [module for module in model.modules() if type(module) in LISTS]
    children = [child for module in lists for child in module.children() if type(child) not in LISTS]
    blocks = [child for child in children if any(True for _ in child.children())]
    counts = Counter(map(type, blocks))
    found = _outermost([block for block in blocks if counts[type(block)] > 1])
    if not found:
        raise SpecRejected(
            f"{FIELD}: the model has no blocks that repeat in a ModuleList or Sequential; name its parts, as "
            "[encoder.*], or leave it out"
        )
    return found


def _named(model: nn.Module, patterns: Sequence[str]) -> list[nn.Module]:
    named = [(name, module) for name, module in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name, _ in named):
            some = ", ".join(name for name, _ in named[:8])
            raise SpecRejected(f"{FIELD}: no module of the model is named {pattern}; it has {some}")
    return _outermost([module for name, module in named if any(fnmatchcase(name, pattern) for pattern in patterns)])


def _outermost(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Those that lie in no other of them."""
    inside = {id(module) for block in blocks for module in block.modules() if module is not block}
    return [block for block in dict.fromkeys(blocks) if id(block) not in inside]
