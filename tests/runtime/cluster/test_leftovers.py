"""What a process leaves that is killed, the next one removes."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.runtime.runs import soon
from trainers import EventLogReader
from trainers.data.loading.files import remove_forsaken_files
from trainers.runtime.cluster.leftovers import own_temporary_folder, remove_own

EMBEDDED = """
import sys, trainers
with trainers.embedded(num_cpus=1) as info:
    print("ready", flush=True)
    sys.stdin.read()
"""
LOADERS = """
import sys
import numpy as np
from trainers.data.datasets import open_dataset
from trainers.spec import DataSpec
if __name__ == "__main__":
    dataset = open_dataset(DataSpec(memory_limit_bytes=0, loader_processes=2), 0)
    next(dataset.batches([(0, np.array([i])) for i in range(100)]))
    print("ready", flush=True)
    how = sys.stdin.read(1)
    dataset.close()
    print("closed", flush=True)
    sys.stdin.read()
"""


def started(code: str, folder: Path) -> subprocess.Popen[str]:
    """A process that has got as far as `ready`."""
    script = folder / "script.py"
    script.write_text(code)
    process = subprocess.Popen([sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def files_of(pid: int) -> list[Path]:
    """Of loader processes."""
    temporary = Path(tempfile.gettempdir()) / f"millrace-loaders-{pid}"
    return [*Path("/dev/shm").glob(f"sem.millrace-{pid}-*"), *([temporary] if temporary.exists() else [])]


def processes_in(folder: Path) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [one.pid for one in found if str(folder) in " ".join(one.info["cmdline"] or ())]


@pytest.mark.long
def test_a_ray_whose_owner_was_killed_ends_when_the_next_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tempfile.mkdtemp(prefix="m-", dir="/tmp")  # short enough for the paths of Ray's sockets
    monkeypatch.setenv("TMPDIR", base)
    monkeypatch.setattr(tempfile, "tempdir", base)
    with started(EMBEDDED, tmp_path) as process:
        (owner,) = Path(base).glob("*/.owner")
        assert processes_in(owner.parent)
        process.kill()
        process.wait()
    mine = own_temporary_folder()
    soon(lambda: not processes_in(owner.parent))
    assert mine.exists()
    assert not owner.parent.exists()
    remove_own(mine)
    shutil.rmtree(base)


RUN = """
import pathlib, sys, psutil, trainers
folder = pathlib.Path(sys.argv[1])
data = {"name": "digits", "memory_limit_bytes": 0, "limit": 64}
with trainers.embedded(num_cpus=2):
    spec = trainers.TrainSpec(data=data, model="mlp", epochs=1)
    print(trainers.train(spec, folder / "whole").state, flush=True)

    def end_ray(event):
        if event.type == "epoch":
            for process in psutil.Process().children():
                process.terminate()

    try:
        trainers.train(spec.model_copy(update={"epochs": 1000000}), folder / "half", end_ray)
    except trainers.MillraceError as error:
        print(type(error).__name__)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_leaves_nothing_in_the_temporary_folder(tmp_path: Path) -> None:
    """Neither Ray's own helpers nor loader processes, nor a run beneath which Ray was told to end: it ends at
    once, and its log says so, where Ray's own client would wait for a minute and then end the process."""
    base = tempfile.mkdtemp(prefix="m-", dir="/tmp")
    script = tmp_path / "run.py"
    script.write_text(RUN)
    env = {**os.environ, "TMPDIR": base}
    command = [sys.executable, script, tmp_path]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "SUCCEEDED\nClusterUnavailable\n", done.stderr
    last = list(EventLogReader(tmp_path / "half").read())[-1]
    assert (last.data["state"], last.data["reason"]) == ("FAILED", "ClusterUnavailable")
    assert list(Path(base).iterdir()) == []
    os.rmdir(base)


def test_a_folder_whose_owner_lives_is_left_alone() -> None:
    mine = own_temporary_folder()
    code = "from trainers.runtime.cluster.leftovers import *; remove_leftovers()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert mine.exists()
    remove_own(mine)
    assert not mine.exists()


@pytest.mark.long
def test_loaders_leave_nothing_when_they_are_closed(tmp_path: Path) -> None:
    with started(LOADERS, tmp_path) as process:
        assert len(files_of(process.pid)) > 1
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("x")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n"
        assert files_of(process.pid) == []
        process.kill()


@pytest.mark.long
def test_what_loaders_of_a_killed_process_leave_is_removed_by_the_next(tmp_path: Path) -> None:
    with started(LOADERS, tmp_path) as process:
        children = psutil.Process(process.pid).children(recursive=True)  # Python's own cleaner among them
        remove_forsaken_files()
        assert files_of(process.pid), "their owner lives"
        for child in children:
            os.kill(child.pid, signal.SIGKILL)
        process.kill()
        process.wait()
    assert files_of(process.pid)
    remove_forsaken_files()
    assert files_of(process.pid) == []
