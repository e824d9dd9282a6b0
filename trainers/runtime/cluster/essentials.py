"""A Ray of our own starts with what runs need of it, and nothing else.

Each of its helpers is a Python process that imports Ray and more, half a second to more than a second of a core each,
and `ray.init` waits for some of them. Ray has no public way to leave them out.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trainers.runtime import fork_server
from trainers.runtime.cluster import absent_agent

AGENT = "dashboard_agent"
SET_UP = str(Path(fork_server.__file__).resolve())
"""What sets workers up without an import of Ray."""
POLL_S = 0.02
NODE_TIMEOUT_S = 30.0
"""Then Ray waits for the node as it would have, which is as long again."""
START = f"from {__name__} import start; start()"
"""A program: `ray start` with the same workers."""


@contextlib.contextmanager
def only_essentials(dashboard: bool) -> Iterator[None]:
    """A Ray that `ray.init` starts within sets its workers up without an import of Ray. Without a dashboard it has
    neither its API server nor its agent, and no monitors: of the autoscaler, which has no nodes to start, and of logs,
    which nobody is sent.
    """
    from ray._private import services

    python, get_node = services._build_python_executable_command_memory_profileable, services.get_node

    def command(component: str, *args: Any, **kwargs: Any) -> list[str]:
        ours = [sys.executable, "-S", absent_agent.__file__]
        return ours if component == AGENT else python(component, *args, **kwargs)

    def got_node(gcs_address: str, node_id: str) -> Any:
        _wait_for_node(gcs_address, node_id)
        return get_node(gcs_address, node_id)

    more: dict[str, Any] = {"dashboard_agent_listen_port": 0}  # any: the usual one, if another Ray's, is tried for 3 s
    with contextlib.ExitStack() as changes:
        changes.enter_context(_replaced(services, get_node.__name__, got_node))
        if not dashboard:
            more |= {"no_monitor": True, "include_log_monitor": False}
            changes.enter_context(_replaced(services, "start_api_server", lambda *_, **__: (None, None)))
            changes.enter_context(_replaced(services, python.__name__, command))
        changes.enter_context(_parameters(**more))
        yield


def start() -> None:
    """The command `ray`, for `ray start`: a Ray that stays, with all that it has, and workers that are set up alike."""
    from ray.scripts.scripts import main

    with _parameters():
        main()


def _wait_for_node(gcs_address: str, node_id: str) -> None:
    """Wait until a raylet has registered; Ray itself would look once a second."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    client, deadline = GcsClient(address=gcs_address), time.monotonic() + NODE_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(Exception):  # Ray asks again, and says what is wrong
            if any(found.hex() == node_id for found in client.get_all_node_info()):
                return
        time.sleep(POLL_S)


@contextlib.contextmanager
def _parameters(**more: Any) -> Iterator[None]:
    """What a Ray that is started within is told besides."""
    from ray._private import parameter

    params = parameter.RayParams

    def told(*args: Any, **kwargs: Any) -> Any:
        made = params(*args, **kwargs)
        vars(made).update(more, setup_worker_path=SET_UP)
        return made

    with _replaced(parameter, params.__name__, told):
        yield


@contextlib.contextmanager
def _replaced(module: ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
