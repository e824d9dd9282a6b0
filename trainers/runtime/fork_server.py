"""Actors that start warm: forked from one process a node that has imported what takes long.

Ray starts a process for every actor, and torch's import is most of what that costs: seconds of both cores when a run
starts. `py_executable` of Ray's runtime environments says what to start instead of Python: this file, run as a script.
It asks this node's fork server for a process, hands over its arguments, environment and output, and ends; the first to
find no server starts one. The forked process registers with Ray by its own process id, as one in a container does, and
shares the pages of the libraries with all others. Where anything fails, Python is started as Ray would have. Whoever
starts a Ray of its own starts the server first, so that it imports while Ray starts. Before it imports torch it forks a
light server, for actors that need none and are asked for so early.

The server imports libraries and our own package as it lies beside this file, and nothing of a user's, so that it serves
every run; it ends with its raylet, or with whoever started both. Another version of our files gets a server of its own.

Ray's library reads the number of the driver that a process works for when it is imported, and the raylet ends the
processes of a driver that has ended. So the server does not import it: for each driver it forks another server, which
does, and which forks that driver's workers.
"""

import contextlib
import gc
import json
import os
import select
import shlex
import signal
import socket
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LIGHT = (
    "numpy", "pydantic", "trainers.spec", "requests", "jsonschema", "psutil", "filelock",
    "google.protobuf.descriptor_pb2", "uvloop", "trainers.prediction", "trainers.spec.advice",
    "trainers.runtime.event_log", "trainers.runtime.cluster.own_ray", "trainers.runtime.code_package",
    "trainers.runtime.metrics_aggregator", "trainers.runtime.topology", "trainers.runtime.actors.usage",
    "trainers.runtime.control.judges.divergence",
)  # fmt: skip
"""All that an actor needs without torch and that does not import Ray, with what Ray itself imports: each driver's
server would take 0.4 s of an Intel Xeon for it while the run waits."""
HEAVY = (
    "safetensors", "torch", "trainers.optim.optimizers.momentum.kernel", "trainers.training.loop",
    "trainers.collectives.shared_memory", "trainers.parameter_server.shared_memory", "pyarrow.compute",
)  # fmt: skip
"""What workers, shards and evaluators need besides.

With one rule that Numba has compiled: what Numba sets up for the first takes 0.4 CPU seconds and 92 MB, which each
worker would otherwise have for itself."""
LIGHT_RAY = "ray._private.node", "ray.actor", "trainers.runtime.coordinator"
HEAVY_RAY = "trainers.runtime.actors.evaluator", "trainers.runtime.actors.shard", "trainers.runtime.actors.worker"
RAYLET, DRIVER = "RAY_RAYLET_PID", "RAY_JOB_ID"
EARLY = "MILLRACE_FORK_SERVER"
"""Set for a Ray whose fork server was started before it: the server's name."""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SPAWN_TIMEOUT_S = 10.0
HASTE_S = 0.05
"""How long an actor that needs no torch waits for a server that may still be importing it: one that has answers within
a millisecond."""
POLL_S = 0.02
IDLE_S = 600.0
"""A driver's server that nobody has asked for so long ends. Forking it again takes a quarter of a second."""
HASTY, SERVE = "--hasty", "--serve"
VISION, TRACING = "--vision", "--tracing"
MORE = {VISION: "torchvision.models", TRACING: "torch._dynamo"}
"""What some actors need besides, by the option that asks for it. Each has servers of its own, since it takes as long as
torch to import. torch itself imports its tracer, with SymPy and Triton, where an object of `torch.optim` is made:
without a server that has it, each worker takes 106 MB and two CPU seconds for itself."""
COMMAND = [sys.executable, "-P", os.path.abspath(__file__), SERVE]
HEAP = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
}
"""Has the C library (glibc) keep what is freed for the next allocation, up to 32 MiB a block, which is the most that it
keeps by itself. A step frees the same activations, gradients and buffers again and again; by itself the library gives
much of it back to the system, and the kernel fills the pages of the next ones with zeros, one fault each. Larger blocks
go back: the library leaves up to four holes of a block's size before it finds one again that is aligned. One arena,
since only the first grows without a bound."""
CONTEXT, LANGUAGE = "--serialized-runtime-env-context", "--language"
"""What Ray's script that sets a worker up is told, and does not pass on."""
_begun: list[Any] = []
"""The process of a server whose Ray this process has not started yet."""
HELLO, FORKED = b"h", b"f"
LENGTH = struct.Struct("<q")
PEER = struct.Struct("3i")  # process, user and group, as the kernel knows them


def environment(more: dict[str, Any] | None, threads: int, options: Iterable[str] = ()) -> dict[str, Any] | None:
    """The runtime environment of an actor that starts warm, with whatever `more` asks for.

    Only where all nodes of the cluster are on this machine, because it names this interpreter.

    Args:
        threads: Of torch, which the server has imported for one thread: others start cold. 0 for an actor that needs
            no torch, and so is forked by a server without it where the other is still importing.
        options: Of `MORE`, what it needs besides. Others do not wait for that.
    """
    import ray

    if threads:
        heap = {name: value for name, value in HEAP.items() if name not in os.environ}
        more = {**(more or {}), "env_vars": heap | (more or {}).get("env_vars", {})}
    hosts = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if hosts != {ray.util.get_node_ip_address()}:
        return more
    command = [sys.executable]
    if threads <= 1:
        command += ["-S", "-P", str(Path(__file__).resolve()), *([] if threads else [HASTY]), *options]
    return {**(more or {}), "py_executable": shlex.join(command)}


def warm_up() -> None:
    """Start the server of the Ray that this process is going to start, so that both import side by side."""
    import atexit  # neither is needed by the process that Ray starts
    import subprocess

    if _begun:
        return
    os.environ[EARLY] = os.urandom(16).hex()
    files: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    files["stdin"] = subprocess.PIPE  # closes where this process ends, or is killed
    variables = _servers_own(os.environ)
    variables.pop(RAYLET, None)  # of another Ray, where a worker of it starts this one
    _begun.append(subprocess.Popen(COMMAND, env=variables, start_new_session=True, **files))
    atexit.register(_begun[0].kill)  # where no Ray is started


@contextlib.contextmanager
def early() -> Iterator[None]:
    """A server for the Ray that is started within, begun before or now, which ends with the block."""
    warm_up()
    with _begun.pop() as server:
        try:
            yield
        finally:
            os.environ.pop(EARLY, None)
            server.kill()


# -- the process that Ray starts --------------------------------------------------------------------------------------


def set_up(arguments: list[str]) -> None:
    """Do what Ray's script that sets a worker up does, for an actor that starts warm; otherwise become that script. It
    imports Ray, half a second of a core, to put an environment and a command together: this file's."""
    named = dict(argument.split("=", 1) for argument in arguments if argument.startswith((CONTEXT, LANGUAGE)))
    context = json.loads(named.get(CONTEXT, "{}"))
    variables, command = context.pop("env_vars", {}), shlex.split(context.pop("py_executable", ""))
    if __file__ not in command or any(context.values()) or any("$" in value for value in variables.values()):
        theirs = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, theirs, *arguments])
    os.environ.update(variables)
    start([*command[command.index(__file__) + 1 :], *(one for one in arguments if one.partition("=")[0] not in named)])


def start(arguments: list[str]) -> None:
    """Have the driver's server fork the worker, and end; otherwise become it."""
    options = set()
    while arguments[0] in (HASTY, *MORE):
        options.add(arguments.pop(0))
    more = sorted(options - {HASTY})
    haste_s = HASTE_S if HASTY in options else None
    if not (_forked(arguments, more, haste_s) or (haste_s and _forked(arguments, more, None, is_light=True))):
        os.execv(sys.executable, [sys.executable, *arguments])


def _forked(arguments: list[str], more: list[str], haste_s: float | None, is_light: bool = False) -> bool:
    """Whether a server has forked the worker; not one that takes longer than `haste_s` to say that it is ready. One
    that ends meanwhile is replaced, once: one that was killed takes connections until the kernel has cleared it away,
    for 20 to 70 ms on an AMD EPYC."""

    def start_drivers() -> None:
        with _connected(server, _start_server) as line:
            _ask(line, [dict(os.environ), more], (), haste_s)

    with contextlib.suppress(OSError, KeyError):
        server = _address(is_light)
        for _ in range(2):
            with contextlib.suppress(ConnectionError), _connected(_drivers(server, more), start_drivers) as line:
                _ask(line, [arguments, dict(os.environ), os.getcwd()], (0, 1, 2), None)
                if line.recv(1) == FORKED:
                    return True
    return False


def _ask(line: socket.socket, what: object, outputs: tuple[int, ...], haste_s: float | None) -> None:
    """Say what to fork, once the server has done its imports; OSError if that takes longer than `haste_s`."""
    line.settimeout(haste_s)
    if line.recv(1) != HELLO:
        raise ConnectionError("the fork server has ended")
    line.settimeout(None)
    request = json.dumps(what).encode()
    socket.send_fds(line, [LENGTH.pack(len(request))], outputs)
    line.sendall(request)


def _connected(address: str, start: Callable[[], None]) -> socket.socket:
    """A connection to a server, which is started if there is none; the kernel keeps us waiting while it imports."""
    started, poll = False, select.poll()
    for _ in range(int(SPAWN_TIMEOUT_S / POLL_S)):
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            line.connect(address)
        except ConnectionRefusedError:
            line.close()
        else:
            if _is_ours(line):
                return line
            break
        if not started:
            started = True
            start()
        poll.poll(1000 * POLL_S)
    raise TimeoutError("no fork server")


def _start_server() -> None:
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:  # an orphan: Ray ends the children of a worker with it, and this process may become a worker
            os.execve(COMMAND[0], COMMAND, _servers_own(os.environ))
        os._exit(0)
    os.waitpid(child, 0)


def _servers_own(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment in which libraries are imported: without the path, which may be a run's own. Forks keep what the
    C library has read of it."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return HEAP | {name: value for name, value in variables.items() if name != "PYTHONPATH"} | one


def _drivers(server: str, more: Iterable[str]) -> str:
    """The address of a driver's own server, one for each choice of `MORE`. Two Rays may number their drivers alike."""
    return f"{server}-{os.environ[RAYLET]}-{os.environ[DRIVER]}{''.join(more)}"


def _address(is_light: bool = False) -> str:
    """One for each raylet and version of our files, in the abstract namespace, which leaves nothing behind."""
    version = 0
    for folder, folders, files in os.walk(os.path.join(ROOT, "trainers")):
        folders.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                version = zlib.crc32(f"{path} {os.stat(path).st_mtime_ns}".encode(), version)
    kind = "light" if is_light else "warm"
    return f"\0millrace-{kind}-{os.getuid()}-{os.environ.get(EARLY) or os.environ[RAYLET]}-{version:08x}"


def _is_ours(line: socket.socket) -> bool:
    """Whether the process at the other end runs as this user: it gets to run commands, or to read our environment."""
    return bool(PEER.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))[1] == os.getuid())


# -- the server -------------------------------------------------------------------------------------------------------


def serve() -> list[str] | None:
    """Fork until the raylet has ended. Returns nothing in the servers, and in each fork a worker's arguments."""
    sys.path.insert(0, ROOT)
    server = _listening(_address())  # before the imports: those that ask meanwhile are served after them
    if server is None:
        return None
    is_able = _import(LIGHT)
    is_light = os.fork() == 0
    if is_light:
        server.close()
        server = _listening(_address(is_light))
    else:
        is_able = is_able and _import(HEAVY)
    driver = _asked(server, None, is_able)
    if driver is None:
        return None
    driver.line.close()
    variables, more = driver.what
    _live_in(_servers_own(variables))  # what Ray reads, below
    server = _listening(_drivers(_address(is_light), more))
    is_able = _import([*LIGHT_RAY, *(() if is_light else HEAVY_RAY), *(MORE[option] for option in more)])
    worker = _asked(server, IDLE_S, is_able)
    return None if worker is None else _become(worker)


class Request(NamedTuple):
    """What to fork, and for which process."""

    line: socket.socket
    what: Any
    outputs: list[int]


def _listening(address: str) -> socket.socket | None:
    """A server's socket; None if another has the address."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(address)
    except OSError:
        server.close()
        return None
    server.listen(128)
    return server


def _import(names: Iterable[str]) -> bool:
    """Import what stays, without collections, which in a fork would copy all pages. Returns whether all is there."""
    gc.disable()
    try:
        for name in names:
            __import__(name)
    except Exception as error:  # whatever an installation may raise
        print(f"workers start cold: {error!r}", file=sys.stderr)
        return False
    gc.enable()
    gc.collect()
    gc.freeze()
    return True


def _asked(server: socket.socket | None, idle_s: float | None, is_able: bool) -> Request | None:
    """Fork for every process that asks, if that is able to work; otherwise it is sent away at once.

    Returns in every fork, with the request. Returns None in the server: when the raylet has ended, or who started it
    before there was one; after `idle_s` in which nobody asked; or if it has no address.
    """
    if server is None:
        return None
    owner = os.pidfd_open(int(os.environ[RAYLET])) if RAYLET in os.environ else os.dup(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while select.select([server.fileno(), owner], [], [], idle_s)[0] == [server.fileno()]:
        line, _ = server.accept()
        request = None
        with contextlib.suppress(OSError, ValueError):
            request = _read(line) if is_able else None
        if request is not None and os.fork() == 0:
            os.close(owner)
            server.close()
            return request
        line.close()
        for output in request.outputs if request else ():
            os.close(output)
    return None


def _read(line: socket.socket) -> Request | None:
    """What a process asks for; None if it is another user's, or has ended."""
    if not _is_ours(line):
        return None
    line.settimeout(SPAWN_TIMEOUT_S)
    line.sendall(HELLO)
    head, outputs, _, _ = socket.recv_fds(line, LENGTH.size, 3)
    if len(head) < LENGTH.size:
        return None
    body = bytearray()
    while len(body) < LENGTH.unpack(head)[0]:
        part = line.recv(1 << 20)
        if not part:
            return None
        body += part
    return Request(line, json.loads(body), outputs)


def _become(worker: Request) -> list[str]:
    """Take over arguments, environment, folder and output, in a process group of one's own, as Ray starts workers."""
    arguments, variables, folder = worker.what
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, output in enumerate(worker.outputs):
        os.dup2(output, number)
        os.close(output)
    _live_in(variables)
    os.chdir(folder)
    import tempfile  # the process that asks needs none of it

    tempfile.tempdir = None  # what the server found in its own environment
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [os.path.dirname(arguments[0]), *paths]
    worker.line.sendall(FORKED)
    worker.line.close()
    return list(arguments)


def _live_in(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        given = serve()
        if given is not None:
            import runpy

            sys.argv = given
            runpy.run_path(given[0], run_name="__main__")
    elif any(argument.startswith(LANGUAGE) for argument in sys.argv):
        set_up(sys.argv[1:])
    else:
        start(sys.argv[1:])
