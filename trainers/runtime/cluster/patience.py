"""How long Ray bears with a node that it does not reach. It is set where Ray is started, on every node."""

import math
from collections.abc import Mapping

CHECKS = 5
"""So many checks of a node in a row must fail, by Ray's default, before the head gives it up."""

DEFAULTS = {
    "RAY_health_check_timeout_ms": 10_000,
    "RAY_gcs_rpc_server_reconnect_timeout_s": 60,
    "RAY_grpc_keepalive_timeout_ms": 20_000,
    "RAY_grpc_client_keepalive_timeout_ms": 120_000,
}
"""The head ends a node; a node that does not reach the head ends itself; and connections over which calls are under way
count as lost, those of a server and those of a client."""


def needed(seconds: float) -> dict[str, int]:
    """What to set so that Ray bears it for so long."""
    whole = math.ceil(seconds)
    return {name: whole * {"_s": 1, "ms": 1000}[name[-2:]] // (CHECKS if "health" in name else 1) for name in DEFAULTS}


def too_impatient(seconds: float, environment: Mapping[str, str]) -> str | None:
    """What to set where Ray, started with this environment, gives up before so many seconds; None where it does not.
    What was given to Ray's head by other means is not seen."""
    wanted = needed(seconds)
    small = {name: int(environment.get(name, DEFAULTS[name])) for name in wanted}
    small = {name: value for name, value in small.items() if value < wanted[name]}
    if not small:
        return None
    found = ", ".join(f"{name} is {value}" for name, value in small.items())
    return (
        f"algorithm.apart_s: a group may be cut off for {seconds:g} s, and Ray gives up what it does not reach before "
        f"that ({found}); before `ray start` on every node set {' '.join(f'{n}={wanted[n]}' for n in small)}"
    )
