"""The front doors: REST, command line and Python client. Names are looked up when they are first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from api.cli.app import build
    from api.cli.context import CliContext, ServeOptions
    from api.client.async_client import AsyncClient
    from api.client.client import Client, Refused, Unreachable
    from api.http.app import AppConfig, create_app
    from api.http.auth import Access
    from api.http.server import CannotServe, Server, bind, is_exposed
    from api.http.sse import Streams

_HOME = {
    "api.http.app": ("AppConfig", "create_app"),
    "api.client.async_client": ("AsyncClient",),
    "api.cli.app": ("build",),
    "api.cli.context": ("CliContext", "ServeOptions"),
    "api.client.client": ("Client", "Refused", "Unreachable"),
    "api.http.auth": ("Access",),
    "api.http.server": ("CannotServe", "Server", "bind", "is_exposed"),
    "api.http.sse": ("Streams",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Access", "AppConfig", "AsyncClient", "CannotServe", "CliContext", "Client", "Refused", "ServeOptions",
    "Server", "Streams", "Unreachable", "bind", "build", "create_app", "is_exposed",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
