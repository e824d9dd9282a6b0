"""Actors forked from a process that has imported torch: quick, and as good as any other."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.runtime.runs import finished, gone_soon, soon, spec, start
from trainers import ClusterInfo
from trainers.runtime import fork_server

pytestmark = pytest.mark.long


@ray.remote(num_cpus=0)
class Probe:
    """Says which process it is."""

    def process(self) -> tuple[int, int, bool, str]:
        return os.getpid(), os.getppid(), "torch" in sys.modules, os.environ["OMP_NUM_THREADS"]

    def has(self, module: str) -> bool:
        return module in sys.modules

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def arenas(self, path: Path) -> int:
        """How many the C library has in this process, by its own account in a file."""
        libc = ctypes.CDLL("libc.so.6")
        libc.fopen.restype = ctypes.c_void_p
        file = ctypes.c_void_p(libc.fopen(str(path).encode(), b"w"))
        libc.malloc_info(0, file)
        libc.fclose(file)
        return path.read_text().count("<heap nr=")

    def given_back(self) -> int:
        """Of 128 blocks of a MiB that are freed, how many MiB the system has again."""
        blocks = [bytearray(1 << 20) for _ in range(128)]
        before = psutil.Process().memory_info().rss
        blocks.clear()
        return (before - psutil.Process().memory_info().rss) >> 20

    def address(self) -> str:
        return fork_server._address()

    def drivers(self) -> str:
        return fork_server._drivers(fork_server._address(), [])


def probed(threads: int) -> tuple[int, int, bool, str]:
    probe = Probe.options(runtime_env=fork_server.environment({"env_vars": {"OMP_NUM_THREADS": "1"}}, threads)).remote()
    found: tuple[int, int, bool, str] = ray.get(probe.process.remote())
    ray.kill(probe)
    return found


def servers() -> list[int]:
    """Process ids of all fork servers below this process's Ray."""
    wanted = f"{Path(fork_server.__file__).resolve()}\0{fork_server.SERVE}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if wanted in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def test_actors_are_forked_from_one_server_that_has_torch(cluster: ClusterInfo) -> None:
    first, second = probed(1), probed(1)
    assert first[0] != second[0]
    assert first[1] == second[1], "both have the server as parent"
    assert first[1] in servers()
    assert first[2], "torch is there before anybody asks for it"
    assert second[2]


@pytest.mark.parametrize("option", fork_server.MORE)
def test_only_those_who_ask_for_more_find_it(cluster: ClusterInfo, option: str) -> None:
    """Its import takes as long as that of torch."""
    for options in ([], [option], []):
        probe = Probe.options(runtime_env=fork_server.environment(None, 1, options)).remote()
        has_torch, has_more = ray.get([probe.has.remote("torch"), probe.has.remote(fork_server.MORE[option])])
        ray.kill(probe)
        assert has_torch
        assert has_more == bool(options)


LIGHT_BYTES = 80 << 20
"""Twice what a worker or shard has for itself that computes next to nothing: 29 to 40 MiB were measured, and 144 of one
that imports torch's tracer by itself."""
LIGHT: dict[str, dict[str, Any]] = {
    "plain": {},
    "optimizer-of-torch": {"optimizer": "torch.optim:NAdam"},
    "torchvision": {"data": {"name": "digits", "limit": 203, "random_crop": 1}},
}


@pytest.mark.parametrize("name", LIGHT)
def test_a_light_actor_shares_most_of_its_memory(cluster: ClusterInfo, tmp_path: Path, name: str) -> None:
    """So that hundreds fit on a machine: what torch imports as it goes is there before they are forked."""
    endless = spec(algorithm="downpour", epochs=1000, report_every_s=0.1, **LIGHT[name])
    watched = start(f"light-{name}", endless, tmp_path)
    watched.until(lambda event: event.type == "step")
    actors = watched.of("actors")[0]
    processes = {actor["name"]: psutil.Process(actor["pid"]) for actor in (*actors["workers"], *actors["shards"])}
    own = {actor: process.memory_full_info().uss for actor, process in processes.items()}
    watched.run.cancel()
    watched.end()
    assert max(own.values()) < LIGHT_BYTES, own


@pytest.mark.parametrize("threads", [1, 2], ids=["forked", "started"])
def test_what_a_step_frees_is_kept_for_the_next(cluster: ClusterInfo, tmp_path: Path, threads: int) -> None:
    """The C library by itself gives most of it back, and keeps the rest by thread."""
    probe = Probe.options(runtime_env=fork_server.environment(None, threads)).remote()
    assert ray.get(probe.given_back.remote()) < 16
    assert ray.get(probe.arenas.remote(tmp_path / "malloc.xml")) == 1
    ray.kill(probe)


def test_a_ray_of_ones_own_finds_its_server_at_work(cluster: ClusterInfo) -> None:
    """It was started first: the server of this driver is a child of that child of ours."""
    server = parent(probed(1)[1])
    assert server in servers()
    assert parent(server) == os.getpid()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_every_driver_has_a_server_that_starts_warm_too(cluster: ClusterInfo) -> None:
    """What is forked belongs to its own driver: the raylet ends those whose driver has ended."""
    program = f"""
        import ray
        from tests.runtime.test_fork_server import Probe, probed
        ray.init({cluster.address!r}, log_to_driver=False)
        print(*probed(1))
    """
    ours = probed(1)[1]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    program = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    _, theirs, has_torch, _ = done.stdout.split()
    assert has_torch == "True", done.stderr
    assert int(theirs) != ours
    assert parent(int(theirs)) == parent(ours), "no second import of torch"


def test_another_number_of_threads_starts_cold(cluster: ClusterInfo) -> None:
    """The libraries choose their kernels by the threads that they find when they are imported."""
    _, parent, has_torch, _ = probed(2)
    assert not has_torch
    assert parent not in servers()


def test_a_server_that_was_killed_is_replaced(cluster: ClusterInfo) -> None:
    _, server, _, _ = probed(1)
    os.kill(server, signal.SIGKILL)
    _, another, has_torch, _ = probed(1)
    assert has_torch
    assert another != server


def test_a_server_that_is_killed_while_an_actor_waits_for_it_is_replaced(cluster: ClusterInfo) -> None:
    """One that dies under a signal takes connections to its last: for 20 to 70 ms on an AMD EPYC, here for longer."""
    _, server, _, _ = probed(1)
    warm = Probe.options(runtime_env=fork_server.environment(None, 1))
    address = ray.get(warm.remote().drivers.remote())
    os.kill(server, signal.SIGSTOP)
    probe = warm.remote()
    soon(lambda: sockets(address) > 1)  # it listens with one, and has one for each who waits
    os.kill(server, signal.SIGKILL)
    _, another, has_torch, _ = ray.get(probe.process.remote())
    assert has_torch
    assert another != server


def sockets(address: str) -> int:
    """How many the kernel knows with this address of the abstract namespace."""
    name = "@" + address.removeprefix("\0")
    return sum(line.split()[-1] == name for line in Path("/proc/net/unix").read_text().splitlines())


def test_a_run_trains_beside_a_server_that_dies_under_it(cluster: ClusterInfo, tmp_path: Path) -> None:
    _, server, _, _ = probed(1)
    os.kill(server, signal.SIGKILL)
    assert finished("warm-killed", spec(algorithm="downpour"), tmp_path).of("state")[-1]["state"] == "SUCCEEDED"


def test_the_server_outlives_the_run_that_started_it(cluster: ClusterInfo, tmp_path: Path) -> None:
    """So that the next one starts warm. The coordinator is the first to ask, and Ray ends its children with it."""
    os.kill(probed(1)[1], signal.SIGKILL)
    watched = start("warm-first", spec(epochs=50), tmp_path)
    watched.until(lambda event: event.type == "step")
    there = servers()
    watched.end()
    gone_soon("warm-first", [watched.of("actors")[0]["coordinator"]["pid"]])
    assert probed(1)[1] in there


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_strangers_are_not_served(cluster: ClusterInfo) -> None:
    """The server runs whatever it is asked to: for its own user only."""
    probed(1)
    address = ray.get(Probe.remote().address.remote())
    stranger = f"""
        import os, socket
        os.setuid(65534)
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.connect({address!r})
        print(line.recv(1))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(stranger)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.strip() == "b''", done.stderr


def test_whoever_gives_up_is_not_forked_for(cluster: ClusterInfo) -> None:
    """A client that goes away before it has said what it wants leaves nothing behind."""
    probed(1)
    address = ray.get(Probe.remote().address.remote())
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(address)
        assert line.recv(1) == fork_server.HELLO
    assert probed(1)[2], "and the server goes on"


def test_the_server_ends_with_its_raylet() -> None:
    program = """
        import ray, sys
        import trainers
        from trainers.runtime import fork_server
        from tests.runtime.test_fork_server import Probe, servers
        with trainers.embedded(num_cpus=1):
            probe = Probe.options(runtime_env=fork_server.environment(None, 1)).remote()
            print(ray.get(probe.process.remote())[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120
    )
    server = int(done.stdout.split()[-1])
    soon(lambda: server not in servers())


def test_the_first_servers_import_no_ray_and_the_light_one_no_torch() -> None:
    """Ray would take the number of a driver that is not its own, and torch is what the light one is there without."""
    program = f"""
        import sys
        sys.path.insert(0, {fork_server.ROOT!r})
        for name in {fork_server.LIGHT}: __import__(name)
        assert 'torch' not in sys.modules
        for name in {fork_server.HEAVY}: __import__(name)
        assert 'ray' not in sys.modules
    """
    subprocess.run([sys.executable, "-P", "-c", textwrap.dedent(program)], check=True)


def test_who_needs_no_torch_does_not_wait_for_it() -> None:
    """While the server still imports it, here for ever, another forks what needs none."""
    program = """
        import os, signal
        import psutil, ray
        import trainers
        from trainers.runtime import fork_server
        from tests.runtime.test_fork_server import Probe, servers
        with trainers.embedded(num_cpus=1):
            (first,) = [pid for pid in servers() if psutil.Process(pid).ppid() == os.getpid()]
            os.kill(first, signal.SIGSTOP)
            probe = Probe.options(runtime_env=fork_server.environment(None, 0)).remote()
            found = ray.get([probe.process.remote(), probe.has.remote("trainers.spec")])
            os.kill(first, signal.SIGCONT)
            print(found[0][1] in servers(), found[0][2], found[1])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.stdout.split() == ["True", "False", "True"], done.stderr


BROKEN = """
import runpy, sys
from trainers.runtime import fork_server
fork_server.HEAVY = ("nowhere",)
if (given := fork_server.serve()) is not None:
    sys.argv = given
    runpy.run_path(given[0], run_name="__main__")
"""
"""A server of an installation in which something cannot be imported."""


def test_a_server_that_cannot_import_sends_actors_away_at_once() -> None:
    """They start as Ray starts them, and do not wait for another server."""
    program = """
        import sys
        import ray
        import trainers
        from trainers.runtime import fork_server
        from tests.runtime.test_fork_server import Probe
        fork_server.COMMAND = [sys.executable, "-c", sys.argv[1]]
        with trainers.embedded(num_cpus=1):
            for threads in (0, 1):
                probe = Probe.options(runtime_env=fork_server.environment(None, threads)).remote()
                print(ray.get(probe.process.remote())[2])
    """
    command = [sys.executable, "-c", textwrap.dedent(program), BROKEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_a_server_that_was_begun_for_nothing_ends_with_its_process() -> None:
    """A run that is refused before it starts a Ray."""
    program = "from trainers.runtime import fork_server as f; f.warm_up(); print(f._begun[0].pid)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    soon(lambda: int(done.stdout) not in servers())


@pytest.mark.parametrize("environment", [None, {"env_vars": {"OURS": "${HOME}/ours"}}], ids=["none", "of-variables"])
def test_an_actor_that_starts_as_ray_starts_it(cluster: ClusterInfo, environment: dict[str, Any] | None) -> None:
    """Our script that sets workers up hands over to Ray's."""
    probe = Probe.options(runtime_env=environment or {}).remote()
    assert not ray.get(probe.has.remote("torch"))
    assert ray.get(probe.variable.remote("OURS")) == (f"{os.environ['HOME']}/ours" if environment else None)
    ray.kill(probe)
