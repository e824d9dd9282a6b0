"""One Ray for each process that tests, and the data that lies beside the repository where there is any.

`make test` runs the tests in four processes. Those that have to do with a Ray are in four groups, each of which is
done by one of them, one after the other, and those of the page in a fifth, so that one browser serves them all; the
proofs that need neither come after them, to whoever is free. No group may be much longer than a fourth of the whole.
"""

import functools
import gc
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # before Ray: a test that forgot to connect fails instead of starting one
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"  # before torch: as in the workers, for equal bits

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; what we start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

import trainers
from trainers import ClusterInfo

Disk = Callable[[int], Path]
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

TOGETHER = {
    "page": ("api/page",),
    "ray": ("runtime",),
    "faults": ("faults",),
    "programs": (
        "api/cli/test_cli.py", "benchmarks", "docs", "examples", "faults/test_soak.py",
    ),
    "servers": ("api/http/test_serve.py", "api/page/test_new_user.py", "deploy", "service/sweeps"),
}  # fmt: skip
"""Beside those elsewhere that use their process's Ray, which are with `ray`. Of two groups a file is in the later. The
last two start a Ray in most tests."""


@functools.cache
def group_of(path: Path) -> str | None:
    """Which of these groups a file's tests belong to."""
    within = path.relative_to(Path(__file__).parent).as_posix() + "/"
    names = [name for name, parts in TOGETHER.items() if within.startswith(tuple(f"{part}/" for part in parts))]
    return names[-1] if names else None


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the marks in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have each of these groups done by one process."""
    for item in items:
        group = group_of(item.path) or ("ray" if "cluster" in getattr(item, "fixturenames", ()) else None)
        if group:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish() -> None:
    """What stands by now, libraries above all, is not looked through for garbage again."""
    gc.freeze()


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterInfo]:
    """A Ray of 8 logical CPUs on this machine."""
    with trainers.embedded(num_cpus=8) as info:
        yield info


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
