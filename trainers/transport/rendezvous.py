"""Where processes on different nodes find each other: a small key-value store that one of them hosts."""

import socket
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore  # where torch's own type stubs name them

from trainers.errors import PeerLost

Address = tuple[str, int]
"""Host and port of the key-value store."""


def host_rendezvous(port: int = 0) -> TCPStore:
    """Serve the key-value store from this process for as long as the result lives; its port is `.port`.

    Whoever hosts it should be a member of what meets there: when it goes, the others take the group for lost.
    """
    return TCPStore("localhost", port, is_master=True, wait_for_workers=False)


def reach_rendezvous(address: Address, timeout_s: float) -> TCPStore:
    """A connection to the key-value store.

    Raises:
        PeerLost: It did not answer within `timeout_s`.
    """
    host, port = address
    try:
        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise PeerLost(f"the rendezvous at {host}:{port} did not answer within {timeout_s:g} s") from error


def await_keys(store: Store, keys: list[str], timeout_s: float) -> None:
    """Stand still until all the keys are set.

    Raises:
        PeerLost: They were not within `timeout_s`.
    """
    try:
        store.wait(keys, timedelta(seconds=timeout_s))
    except RuntimeError as error:
        raise PeerLost(f"not everyone came to {', '.join(keys)} within {timeout_s:g} s") from error


def own_host(towards: Address) -> str:
    """This node's address on the way to another host, so that nobody has to name a network interface."""
    family, kind, protocol, _, target = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing: it only picks the route
        return str(probe.getsockname()[0])
