"""The front doors: REST, command line and Python client. Names are looked up when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from api.app import create_app
    from api.async_client import AsyncClient
    from api.cli import Doors, ServeOptions, build
    from api.client import Client, Refused, Unreachable
    from api.guard import Access
    from api.server import CannotServe, Server, bind, is_exposed
    from api.sse import Streams

_HOME = {
    "api.app": ("create_app",),
    "api.async_client": ("AsyncClient",),
    "api.cli": ("Doors", "ServeOptions", "build"),
    "api.client": ("Client", "Refused", "Unreachable"),
    "api.guard": ("Access",),
    "api.server": ("CannotServe", "Server", "bind", "is_exposed"),
    "api.sse": ("Streams",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Access", "AsyncClient", "CannotServe", "Client", "Doors", "Refused", "ServeOptions", "Server", "Streams",
    "Unreachable", "bind", "build", "create_app", "is_exposed",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
