"""The front doors: REST, command line and Python client. Names are looked up when they are first used."""

from typing import TYPE_CHECKING

from service import lazy_names

if TYPE_CHECKING:  # each name once, on a line of its own: `lazy_names` reads them here
    from api.cli.app import build as build
    from api.cli.context import CliContext as CliContext
    from api.cli.context import ServeOptions as ServeOptions
    from api.client.async_client import AsyncClient as AsyncClient
    from api.client.client import Client as Client
    from api.client.client import Refused as Refused
    from api.client.client import Unreachable as Unreachable
    from api.http.app import AppConfig as AppConfig
    from api.http.app import create_app as create_app
    from api.http.auth import Access as Access
    from api.http.server import CannotServe as CannotServe
    from api.http.server import Server as Server
    from api.http.server import bind as bind
    from api.http.server import is_exposed as is_exposed
    from api.http.sse import Streams as Streams
else:
    __all__, __getattr__ = lazy_names(__name__, __file__)
