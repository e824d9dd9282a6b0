"""The tokens of a state directory, with or without a server that works on it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from api.cli.context import ServeOptions
from deploy.settings import Settings

if TYPE_CHECKING:
    from service import Tokens


def database(settings: Settings, state_dir: Path) -> str:
    """Where the jobs and the tokens of a state directory are."""
    return settings.database or f"sqlite:///{state_dir / 'millrace.db'}"


@contextlib.contextmanager
def opened_tokens(settings: Settings, state_dir: Path) -> "Iterator[Tokens]":
    """The tokens in a state directory, which may be in use by a server."""
    from service import Store, Tokens

    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = Store.open(database(settings, state_dir))
    try:
        yield Tokens(store.engine)
    finally:
        store.close()


def has_token(settings: Settings, state_dir: Path) -> bool:
    """Whether anybody could come in; nothing is written where there is no database yet. Raises CannotServe."""
    if not settings.database and not (state_dir / "millrace.db").exists():
        return False
    from api import CannotServe
    from service import DatabaseRefused

    try:
        with opened_tokens(settings, state_dir) as tokens:
            return tokens.any()
    except DatabaseRefused as error:
        raise CannotServe(str(error)) from None


def no_token(options: ServeOptions) -> Exception:
    """Why a server that demands tokens does not start without one."""
    from api import CannotServe

    return CannotServe(
        f"refusing to listen on {options.host} without a token: nobody could come in, or everybody; "
        f"`millrace token create NAME --role admin --state-dir {options.state_dir}` makes one"
    )
