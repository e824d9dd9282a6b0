"""The graph of a model, traced by torch.fx."""

import threading

from torch import fx, nn

from trainers.models.dropout import ExampleDropout
from trainers.models.networks.column_norm import ColumnNorm
from trainers.models.networks.projected import Projected

_LOCK = threading.Lock()
"""torch.fx replaces `nn.Module.__call__` while it traces a model, so only one thread may trace at a time."""


class _Tracer(fx.Tracer):
    """Treats as leaves `ExampleDropout` and `ColumnNorm`, because what they do depends on values and shapes, and
    `Projected`, which is one layer."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, ExampleDropout | ColumnNorm | Projected)
        return known or super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.Graph:
    """The graph of a model. Meanwhile no other thread of the process may call a module.

    Raises:
        Exception: Whatever the model's own code raises when it is traced.
    """
    with _LOCK:
        return _Tracer().trace(model)
