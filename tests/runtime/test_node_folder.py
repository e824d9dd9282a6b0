"""The folder of a run on a node: one for all processes of one Ray, none that another Ray meets, none left for ever."""

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from tests.runtime.runs import spec
from trainers.runtime import node_folder as module
from trainers.runtime.actors.worker import GROUPS, Worker
from trainers.runtime.node_folder import cleanup, leave, node_folder, where

HOLD = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
import ray
from trainers.runtime import node_folder
ray.get_runtime_context = lambda: SimpleNamespace(get_session_name=lambda: sys.argv[2])
node_folder._root = lambda: Path(sys.argv[1])
print(node_folder.node_folder("job"), flush=True)
time.sleep(600)
"""

WRITE = """
import sys
from pathlib import Path
folder = Path(sys.argv[1])
for i in range(200_000):
    try:
        (folder / str(i)).touch()
    except FileNotFoundError:
        break
    if i == 500:
        print(flush=True)
else:
    sys.exit("the folder is still there")
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Which Ray this process is said to be connected to."""
    said = SimpleNamespace(name="session_a")
    context = SimpleNamespace(get_session_name=lambda: said.name)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(module, "_root", lambda: tmp_path)
    monkeypatch.setattr(module, "_held", {})
    return said


def test_two_rays_on_one_machine_may_have_runs_of_the_same_id(session: SimpleNamespace) -> None:
    ours = node_folder("job")
    (ours / "vector").touch()
    session.name = "session_b"
    theirs = node_folder("job")
    assert theirs != ours
    assert not list(theirs.iterdir())
    cleanup("job")
    assert not theirs.exists()
    assert (ours / "vector").exists()


def test_the_same_run_has_the_same_folder_until_it_is_swept(session: SimpleNamespace) -> None:
    (node_folder("job") / "vector").touch()
    assert list(node_folder("job").iterdir())
    cleanup("job")
    assert not where("job").exists()
    assert not list(node_folder("job").iterdir())


def test_whoever_leaves_removes_nothing_that_another_holds(session: SimpleNamespace, tmp_path: Path) -> None:
    """An actor that ends by itself may be the only one that thinks that the run is over."""
    session.name = "b"
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path, "b"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        theirs = Path(other.stdout.readline().strip())
        assert theirs == node_folder("job")
        leave("job")
        is_there = theirs.exists()
        other.kill()
    assert is_there
    node_folder("job")
    leave("job")
    assert not where("job").exists()


def test_what_a_killed_process_left_is_removed_when_the_next_run_begins(
    session: SimpleNamespace, tmp_path: Path
) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path, "b"], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        theirs = Path(other.stdout.readline().strip())
        (theirs / "vector").touch()
        node_folder("first")
        assert (theirs / "vector").exists(), "it lived"
        other.send_signal(signal.SIGKILL)
    node_folder("second")
    assert not theirs.exists()
    assert where("first").exists()
    assert where("second").exists()


def test_what_the_other_side_of_a_run_sweeps_is_made_anew(session: SimpleNamespace) -> None:
    (node_folder("job") / "vector").touch()
    held = module._held.copy()
    module._held.clear()  # as another process of the same run
    cleanup("job")
    module._held.update(held)
    assert not list(node_folder("job").iterdir())


def test_a_folder_is_removed_while_another_process_writes_into_it(session: SimpleNamespace, tmp_path: Path) -> None:
    for _ in range(5):
        folder = node_folder("job")
        with subprocess.Popen([sys.executable, "-c", WRITE, folder], stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout
            other.stdout.readline()
            cleanup("job")
            assert other.wait() == 0, "it finds the folder gone"
        assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_begins_while_its_run_ends_brings_nothing_back() -> None:
    """A cancel overtakes the worker that replaces a dead one: `cleanup` comes first, `prepare` is still to begin."""
    actor = ray.remote(concurrency_groups=GROUPS)(Worker).options(num_cpus=0)
    worker = actor.remote("newcomer/worker/0", "newcomer", spec(), None)
    ray.get(worker.cleanup.options(concurrency_group="control").remote())
    with pytest.raises(ray.exceptions.RayTaskError, match="No such file"):
        ray.get(worker.prepare.options(concurrency_group="control").remote(chooses=False, tries=False))
    assert not where("newcomer").exists()
    ray.kill(worker)


def test_all_tests_with_a_ray_are_done_by_one_process(request: pytest.FixtureRequest) -> None:
    if "workerinput" not in vars(request.config):
        pytest.skip("the tests run in one process")
    assert request.node.nodeid.endswith("@ray"), "xdist did not take note of the groups"
