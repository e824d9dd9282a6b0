"""The front doors: REST, command line and Python client. Names are looked up when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from api.app import create_app
    from api.cli import Doors, ServeOptions, build
    from api.client import Client, Refused, Unreachable
    from api.server import CannotServe, Server, bind
    from api.sse import Streams

_HOME = {
    "api.app": ("create_app",),
    "api.cli": ("Doors", "ServeOptions", "build"),
    "api.client": ("Client", "Refused", "Unreachable"),
    "api.server": ("CannotServe", "Server", "bind"),
    "api.sse": ("Streams",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CannotServe", "Client", "Doors", "Refused", "ServeOptions", "Server", "Streams", "Unreachable", "bind", "build",
    "create_app",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
