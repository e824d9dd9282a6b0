"""What `millrace login` keeps: a file for each service, in the user's folder of settings, which nobody else reads."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from urllib.parse import quote

from pydantic import ConfigDict, ValidationError

from service import Documented


class Login(Documented):
    """How this user comes in at one service."""

    model_config = ConfigDict(frozen=True)

    server: str
    token: str
    user: str
    expires: float | None
    """Seconds since 1970."""
    is_ours: bool
    """Whether a sign-in has made the token, for this file alone. If not, others may use it, too."""


class Logins:
    """All of one user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or _folder()

    def find(self, server: str) -> Login | None:
        """The login at a service, by its URL."""
        try:
            return Login.model_validate_json(self.path(server).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep(self, login: Login) -> Path:
        """Write one down, in the place of an older one. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=self.folder)  # with mode 0600
        try:
            with open(handle, "w") as file:
                file.write(login.model_dump_json(indent=2))
            os.replace(name, self.path(login.server))
        except BaseException:
            os.unlink(name)
            raise
        return self.path(login.server)

    def forget(self, server: str) -> None:
        """Remove one, if it is there. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.path(server).unlink()

    def path(self, server: str) -> Path:
        """The file of a service."""
        return self.folder / f"{quote(server, safe='')}.json"


def kept_token(server: str) -> str:
    """The token of the login at a service; empty where there is none."""
    login = Logins().find(server)
    return "" if login is None else login.token


def _folder() -> Path:
    from typer import get_app_dir  # it knows where each system wants such a folder

    return Path(get_app_dir("millrace")) / "logins"
