"""The only reader of the environment: every variable begins with MILLRACE_."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Defaults of the command line, which its options override."""

    model_config = SettingsConfigDict(env_prefix="MILLRACE_", frozen=True, use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Where `millrace serve` listens; loopback only."""

    port: int = Field(default=8466, ge=0, le=65535)
    """Its port."""

    server: str = ""
    """The service that `submit`, `watch` and the others ask; left out: the one on `host` and `port`."""

    state_dir: Path = Path("~/.local/state/millrace")
    """What `millrace serve` keeps: the list of jobs, their runs, and which Ray it started."""

    runs_dir: Path = Path("runs")
    """Where `millrace run` leaves what it trained."""

    @property
    def server_url(self) -> str:
        """The service's address, with its default filled in."""
        return self.server or f"http://{self.host}:{self.port}"
