"""How the workers of a generation form one of the library's process groups: all meet at the rendezvous first."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store  # where torch's own type stubs name it

from trainers.errors import PeerLost
from trainers.links.rendezvous import Address, RendezvousClient, own_host

FIRST_LOOK_S, LAST_LOOK_S = 0.001, 0.02
"""Between two looks whether all workers are there: the pause doubles from the first to the last."""


class Group(Protocol):
    """What is called of the library's gloo and NCCL groups; their type stubs leave it out."""

    def alltoall_base(
        self, receive: Tensor, send: Tensor, receive_sizes: list[int], send_sizes: list[int], /
    ) -> dist.Work:
        """Exchange cuts of one vector for cuts of another."""

    def broadcast(self, vectors: list[Tensor], options: dist.BroadcastOptions, /) -> dist.Work:
        """Replace a vector by the root's."""

    def allreduce(self, vectors: list[Tensor], options: dist.AllreduceOptions = ..., /) -> dist.Work:
        """Replace a vector by its sum, or what the options say."""

    def abort(self) -> None:
        """Give up what is under way (NCCL only)."""


@dataclass(frozen=True)
class GroupConfig:
    """What makes a process group; small and picklable."""

    store_address: Address
    prefix: str
    """Unique to the generation."""
    rank: int
    size: int
    device: torch.device
    timeout_s: float = 10.0
    """A peer that hangs costs so much."""
    join_timeout_s: float = 60.0
    nodes: tuple[int, ...] = ()
    """The number of the node on which each worker is; empty: all are on one."""


class GroupRendezvous(Store):
    """The rendezvous as the library wants to see it, under the prefix of one group."""

    def __init__(self, line: RendezvousClient, prefix: str) -> None:
        super().__init__()
        self.line = line
        self.prefix = prefix

    def set(self, key: str, value: bytes | str) -> None:
        self.line.set(f"{self.prefix}/{key}", value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self.line.get(f"{self.prefix}/{key}")

    def check(self, keys: list[str]) -> bool:
        return all(self.line.has(f"{self.prefix}/{key}") for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        for key in keys:
            self.line.get(f"{self.prefix}/{key}", timeout.total_seconds() if timeout else None)


def _meet(config: GroupConfig, store: GroupRendezvous, given_up: Callable[[], bool], about: bytes) -> None:
    """Until all members are there. By looking again and again: who gives them up has no hold yet on the connection."""
    store.set(f"here-{config.rank}", about)
    deadline, pause_s = time.monotonic() + config.join_timeout_s, FIRST_LOOK_S
    for k in range(config.size):
        while not store.check([f"here-{k}"]):
            if given_up() or time.monotonic() > deadline:
                raise PeerLost(f"worker {k} did not come within {config.join_timeout_s:g} s, or was given up")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_LOOK_S)


def form_group(
    config: GroupConfig, store: GroupRendezvous, given_up: Callable[[], bool], about: bytes
) -> tuple[Group, list[bytes]]:
    """The library's group, once all members are there: only then does the short timeout begin to count.

    Args:
        config: Of the group.
        store: Where they meet.
        given_up: Whether to wait for the others no longer.
        about: What the others are to know of this member.

    Returns:
        The group, and what each member said about itself, by rank.

    Raises:
        PeerLost: Somebody did not come.
    """
    _meet(config, store, given_up, about)
    timeout = timedelta(seconds=config.timeout_s)
    try:
        if config.device.type == "cuda":
            make: Any = dist.ProcessGroupNCCL
            options = make.Options()
        else:
            make = dist.ProcessGroupGloo
            options = make._Options()
            options._devices = [make.create_device(hostname=own_host(store.line))]
            options._threads = 2
        options._timeout = timeout
        group: Group = make(store, config.rank, config.size, options)
        return group, [store.get(f"here-{k}") for k in range(config.size)]
    except RuntimeError as error:
        raise PeerLost(f"worker {config.rank} could not join its group: {reason_of(error)}") from error


def reason_of(error: BaseException) -> str:
    """What the library says, without its source file and its advice."""
    return re.sub(r"^\[\S+\] ", "", str(error)).partition(". This is")[0]
