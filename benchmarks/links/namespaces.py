"""Several nodes on this machine with slow links between them: network namespaces, each with a virtual cable to a
switch, on which a token bucket lets through so many bits a second each way. Needs root and iproute2.

A process that has entered a namespace stays in it, with all that it starts; so it must be one of its own.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import trainers
from benchmarks.measurement.processes import MeasurementError
from benchmarks.measurement.workload import REPOSITORY
from trainers.runtime.cluster import RAY_COMMAND, RAY_ENVIRONMENT
from trainers.runtime.processes import descendants, kill_all

ADDRESSES = ("10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.4")
CABLE = "cable"
"""The device of every node."""
PORT = 6379  # free, since nothing else is in the namespace
BURST_S = 0.002
"""What the bucket holds, in seconds of its rate: the kernel fills it about as often."""
QUEUE_MS = 50
HEAD = ("--head", f"--port={PORT}", "--include-dashboard=false")
START_S = 600.0
LOG = "ray-start.log"
CLONE_NEWNET = 0x40000000


def is_possible() -> bool:
    """Whether this process may make a link."""
    return os.geteuid() == 0 and all(shutil.which(name) for name in ("ip", "tc"))


@contextmanager
def network(mbit_per_s: float, count: int = 2) -> Iterator[tuple[str, ...]]:
    """So many namespaces with links between them, by name. Their addresses are the first of ADDRESSES.

    Raises:
        MeasurementError: The kernel refuses; with its words.
    """
    names = tuple(f"mr{os.getpid()}{letter}" for letter in "abcd"[:count])
    switch = f"mr{os.getpid()}switch"
    burst = f"{max(64_000, int(mbit_per_s * 1e6 / 8 * BURST_S))}"
    bucket = ("tbf", "rate", f"{mbit_per_s:g}mbit", "burst", burst, "latency", f"{QUEUE_MS}ms")
    try:
        for name in (switch, *names):
            _tell("ip", "netns", "add", name)
        _tell("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _tell("ip", "-n", switch, "link", "set", "bridge", "up")
        for name, address in zip(names, ADDRESSES, strict=False):
            _tell("ip", "link", "add", CABLE, "netns", name, "type", "veth", "peer", "name", name, "netns", switch)
            _tell("ip", "-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
            _tell("ip", "-n", switch, "link", "set", name, "master", "bridge")
            for where, device in ((name, "lo"), (name, CABLE), (switch, name)):
                _tell("ip", "-n", where, "link", "set", device, "up")
            for where, device in ((name, CABLE), (switch, name)):  # what the node sends, and what it is sent
                _tell("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket)
        yield names
    finally:
        for name in (switch, *names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def enter(name: str) -> None:
    """Move this thread, and all that it starts from now on, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/run/netns/{name}").open() as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise MeasurementError(f"cannot enter the namespace {name}: {os.strerror(ctypes.get_errno())}")


def sent_bytes(name: str) -> int:
    """That a node has put on its cable since it has one, with headers; what the bucket dropped is not among them."""
    link = _tell("ip", "-n", name, "-s", "-j", "link", "show", "dev", CABLE)
    return int(json.loads(link)[0]["stats64"]["tx"]["bytes"])


def cut(name: str) -> None:
    """Take a node off the network."""
    _tell("ip", "-n", name, "link", "set", CABLE, "down")


def mend(name: str) -> None:
    """Put it back."""
    _tell("ip", "-n", name, "link", "set", CABLE, "up")


@contextmanager
def nodes(mbit_per_s: float, count: int = 2, cpus: int = 1) -> Iterator[tuple[str, ...]]:
    """A Ray of so many nodes of so many CPUs each with links between them; their namespaces. This process is on the
    first node, and connected."""
    with network(mbit_per_s, count) as names:
        enter(names[0])
        folder = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))  # short, since the paths of sockets are
        os.environ["RAY_AUTH_MODE"] = "disabled"  # nobody else is in the namespaces
        before = descendants(os.getpid())
        try:
            _bring_up(folder, names, cpus)
            yield names
        finally:
            trainers.detach()
            kill_all([process for process in descendants(os.getpid()) if process not in before])
            shutil.rmtree(folder, ignore_errors=True)


def _bring_up(folder: Path, names: Sequence[str], cpus: int) -> None:
    room = f"--num-cpus={cpus}"
    head = _start(folder, names[0], ADDRESSES[0], room, *HEAD, f"--temp-dir={folder}")
    _wait(head, folder, (folder / "ray_current_cluster").exists)  # it is written when the head is ready
    to_head = f"--address={ADDRESSES[0]}:{PORT}"
    trainers.attach(f"{ADDRESSES[0]}:{PORT}")
    for number, name in enumerate(names[1:], 1):  # one by one: Ray gives a node half a minute, whoever else starts
        other = _start(folder, name, ADDRESSES[number], room, to_head)
        _wait(other, folder, partial(_has, cpus * (number + 1)))


def _has(cpus: int) -> bool:
    return trainers.total_resources().cpus >= cpus


def _start(folder: Path, namespace: str, address: str, *options: str) -> "subprocess.Popen[bytes]":
    """A node of Ray in a namespace, as a child."""
    where = ["ip", "netns", "exec", namespace, sys.executable, "-c", RAY_COMMAND, "start", "--block"]
    what = [f"--node-ip-address={address}", *options]
    env = {**os.environ, **RAY_ENVIRONMENT, "TMPDIR": str(folder), "PYTHONPATH": str(REPOSITORY)}
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(where + what, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait(node: "subprocess.Popen[bytes]", folder: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not is_ready():
        if node.poll() is not None or time.monotonic() > deadline:
            raise MeasurementError(f"a node of Ray did not start: {(folder / LOG).read_text()[-500:]}")
        time.sleep(0.2)


def _tell(*command: str) -> str:
    """What the command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MeasurementError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
