"""One Ray for each process that tests, and the data that lies beside the repository where there is any.

`make test` runs the tests in four processes. Those that have to do with a Ray are in six groups, each of which is
done by one of them, one after the other. Those of the page are a group too, so that one browser serves them all. No
group may be much longer than a fourth of the whole. The others come after them file by file, to whoever is free: what
the tests of a file share, libraries above all, is loaded by one process.
"""

import functools
import gc
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # before Ray: a test that forgot to connect fails instead of starting one
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch: as in the workers, for equal bits

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; what we start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import trainers
from trainers import ClusterInfo

Disk = Callable[[int], Path]
LONG_S = 900.0
"""Ten times what the longest takes on two cores that do nothing else."""
PAGE = Path(__file__).parent / "api" / "page"
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

TOGETHER = {
    "page": ("api/page",),
    "ray": ("runtime",),
    "faults": ("faults",),
    "regions": ("faults/regions", "faults/test_compress.py", "faults/test_slow_code.py"),
    "shards": tuple(f"faults/test_shard{of}.py" for of in ("_actor", "_copies", "_deaths", "_replies", "s_of_a_run")),
    "programs": ("api/cli/test_cli.py", "benchmarks/test_contenders.py", "docs", "faults/test_soak.py"),
    "servers": ("api/http/test_serve.py", "api/page/test_new_user.py", "deploy", "service/sweeps"),
}  # fmt: skip
"""Beside those elsewhere that use their process's Ray, which are with `ray`. Of two groups a file is in the later. Most
tests of the last two start a Ray of their own."""


@functools.cache
def group_of(path: Path) -> str | None:
    """Which of these groups a file's tests belong to."""
    within = path.relative_to(Path(__file__).parent).as_posix() + "/"
    names = [name for name, parts in TOGETHER.items() if within.startswith(tuple(f"{part}/" for part in parts))]
    return names[-1] if names else None


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the marks in a hook of the same name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have each of these groups done by one process, and begin with them: they take longest. The files with most tests
    are next, so that the last ones are short."""
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))
        group, has_ray = group_of(item.path), "cluster" in getattr(item, "fixturenames", ())
        is_short_fault = group in ("faults", "regions", "shards") and item.get_closest_marker("long") is None
        if has_ray and (group is None or is_short_fault):
            group = "ray"  # the few faults that `make test` tries need no second one
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        if item.path.is_relative_to(PAGE):
            item.add_marker(pytest.mark.page)
    if hasattr(config, "workerinput"):
        sizes, ranks = Counter(item.path for item in items), {name: rank for rank, name in enumerate(TOGETHER)}

        def place(item: pytest.Item) -> tuple[int, int]:
            mark = item.get_closest_marker("xdist_group")
            return (ranks[mark.args[0]], 0) if mark else (len(ranks), -sizes[item.path])

        items.sort(key=place)


class Scheduling(LoadGroupScheduling):
    """What is in no group is given out by files."""

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """In the order of the collection, instead of that of the numbers of tests."""
    if config.getvalue("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """What stands by now, libraries above all, is not looked through for garbage again."""
    gc.freeze()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterInfo]:
    """A Ray of 8 logical CPUs on this machine."""
    with trainers.embedded(num_cpus=8) as info:
        yield info


@pytest.fixture(autouse=True)
def _no_profiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller under test finds no profiles of this machine's user, with which its run would be compared."""
    if "control" in request.path.parts and "cluster" not in request.fixturenames:
        monkeypatch.setenv("HOME", "/nonexistent")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """Makes a file system of so many bytes; called again, it changes its size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made: list[int] = []

    def make(size: int) -> Path:
        remount = "remount," if made else ""
        command = ["mount", "-t", "tmpfs", "-o", f"{remount}size={size}", "millrace-test", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"needs to be allowed to mount a file system: {done.stderr.strip()}")
        made.append(size)
        return folder

    yield make
    if made:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def mnist_root() -> Path:
    """A folder with MNIST in torchvision's layout."""
    if not (SHARED_DATA / "MNIST").is_dir():
        pytest.skip("MNIST does not lie in ../shared/data")
    return SHARED_DATA
