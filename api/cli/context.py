"""What the commands work with: exit statuses, how to serve, and the context that `deploy` puts together."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from service import ClusterInfo, Growth, NodeGroup, Resources, Runs, Tokens

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True)
class ServeOptions:
    """The options of `millrace serve`."""

    host: str
    port: int
    state_dir: Path
    address: str | None
    """An existing Ray cluster; none: a head of our own that outlives the server."""
    num_cpus: int | None
    require_token: bool = False
    """Whether a loopback address demands tokens too; every other address always does."""
    code_role: str = "admin"
    """The least role whose jobs may run code of their own."""
    webhook_allow: tuple[str, ...] = ()
    """Private networks that webhooks may lead to all the same."""
    storage: str = ""
    """The URL at which copies of runs are kept; empty: no copies."""


class ClusterOfRun(Protocol):
    """A Ray for one run."""

    def __call__(
        self, address: str | None, needs: "Resources", num_cpus: int | None, dashboard: bool = True
    ) -> "AbstractContextManager[ClusterInfo]":
        """The cluster at an address, or an embedded one of so many resources, or so many CPUs; whether that has Ray's
        dashboard."""


@dataclass(frozen=True)
class CliContext:
    """The defaults of the commands, and the functions that they call outside this package."""

    server: str
    host: str
    port: int
    state_dir: Path
    runs_dir: Path
    """Where `run` leaves what it trained; `sweep` writes there too, in folders of its own."""
    serve: Callable[[ServeOptions], None]
    stop_cluster: Callable[[Path], None]
    runs: "Callable[[], Runs]"
    cluster: ClusterOfRun
    tokens: "Callable[[Path], AbstractContextManager[Tokens]]"
    """Opens the tokens of the service whose state is in a folder."""
    token: str = ""
    """The token for the service at `server`; it is shown to no other service."""
    code_role: str = "admin"
    webhook_allow: tuple[str, ...] = ()
    data_root: Path = Path("data")
    database: str = ""
    """A PostgreSQL's URL; empty: SQLite in `state_dir`."""
    storage: str = ""
    """The URL at which copies of runs are kept; empty: no copies."""
    config: Path | None = None
    """The settings file that was looked for."""
    grows_to: "tuple[NodeGroup, ...]" = ()
    """What an existing cluster may become; none: it stays as it is."""

    @classmethod
    def of_no_command(cls) -> "CliContext":
        """For a command line that only tells which commands there are."""

        def unused(*_: Any, **__: Any) -> Any:
            raise AssertionError("no command was named")

        return cls("", "", 0, Path(), Path(), unused, unused, unused, unused, unused)

    def growth(self, address: str | None) -> "Growth":
        """What the cluster at an address may become. One of our own stays as it is."""
        from service import Growth

        return Growth(self.grows_to if address is not None else ())
