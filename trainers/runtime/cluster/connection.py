"""This process's connection to a Ray. Ray is imported inside functions, so that reading this file costs nothing."""

import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from trainers.errors import ClusterUnavailable

NAMESPACE = "millrace"
LOOPBACK = "127.0.0.1"
RAY_COMMAND = "from ray.scripts.scripts import main; main()"
STARTS = 2
"""How often Ray is started before it counts as failed. It gives up after 30 s, which a busy machine exceeds."""
CONNECT_TIMEOUT_S = 3.0
RAY_ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # or a call of Ray's while none is connected would start a second cluster unasked
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_prestart_worker_first_driver": "0",  # processes that no actor of ours would take
    "RAY_gcs_server_port_wait_time_s": "120",  # 20 by default, which a busy machine exceeds
    "RAY_worker_niceness": "0",  # by default Ray's own daemons go before the training
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # a sweep has logs of its own
    "TUNE_WARN_THRESHOLD_S": "5",
}

RAYLET_ENVIRONMENT = {
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "3000",
}
"""Of a Ray that is started here. A raylet asks for its own store's socket while a thread of it makes that: ten looks, a
second apart, by default."""


@dataclass(frozen=True)
class ClusterInfo:
    """Where a Ray cluster is."""

    address: str
    """Host and port of its head, for `--address`."""

    dashboard_url: str
    """Ray's dashboard, for a browser; empty where there is none."""


def attach(address: str, json_logs: bool = False) -> ClusterInfo:
    """Connect this process to a cluster that runs already.

    Args:
        address: Host and port of its head.
        json_logs: Whether this process, and the runs that it starts, log a JSON object a line.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():  # Ray itself would try for half a minute
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise ClusterUnavailable(f"no Ray cluster answers at {address}: {error.strerror or error}") from None
    _use_token()
    if json_logs:
        return initialise(address=address, logging_config=ray_module().LoggingConfig(encoding="JSON"))
    return initialise(address=address)


def cluster_is_open(address: str) -> bool:
    """Whether the cluster at an address lets in whoever shows no token. Takes seconds: it is tried by a process of its
    own, because a process knows one token."""
    command = [sys.executable, "-c", RAY_COMMAND, "status", "--address", address]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0


def detach() -> None:
    """Disconnect; what was attached to goes on."""
    if is_connected():
        ray_module().shutdown()


def ray_module() -> Any:
    """Ray, imported when it is first needed; half of it is untyped."""
    os.environ.update(RAY_ENVIRONMENT)  # some of it is read at the import
    import ray

    return ray


def initialise(**options: Any) -> ClusterInfo:
    ray = ray_module()
    logging.getLogger("ray").setLevel(logging.ERROR)  # before it announces its token
    try:
        context = ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises plain ones too, where a machine is too busy for it
        text = " ".join(str(error).split())
        raise ClusterUnavailable(
            f"Ray did not start or connect: {text}; is the machine very busy, or its disk or memory full?"
        ) from error
    _hush_raylet()
    url = context.dashboard_url
    return ClusterInfo(str(context.address_info["address"]), f"http://{url}" if url else "")


def _hush_raylet() -> None:
    """Leave out what Ray prints on stdout of each actor that ends, even where nothing is to be logged: that the OOM
    killer is a common cause. The run's own log says why, and stdout may be a program's to read."""
    from ray._private import worker  # Ray has no public way

    worker._worker_logs_enabled = False


def _use_token() -> None:
    """Show this user's token to a cluster that may ask for it; Ray does so by itself only if it has found the cluster
    by itself. RAY_AUTH_MODE takes precedence."""
    ray_module()
    logging.getLogger("ray").setLevel(logging.ERROR)  # it would announce the token
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def ray_settings() -> dict[str, str]:
    """What the environment tells Ray, in whose processes it is that of the node's `ray start`."""
    return {name: value for name, value in os.environ.items() if name.startswith("RAY_")}


def is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())
