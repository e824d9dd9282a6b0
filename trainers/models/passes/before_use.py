"""Tells of each parameter before an operation uses it."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode


class BeforeUse(TorchFunctionMode):
    """Calls back with a parameter's name before any operation uses it.

    Hooks on modules would miss parameters that another module uses, as attention uses those of its projection.
    """

    def __init__(self, names: dict[int, str], on_use: Callable[[str], None]) -> None:
        super().__init__()
        self.names, self.on_use = names, on_use

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            for item in value if isinstance(value, list | tuple) else (value,):
                if isinstance(item, nn.Parameter) and id(item) in self.names:
                    self.on_use(self.names[id(item)])
        return func(*args, **kwargs)
