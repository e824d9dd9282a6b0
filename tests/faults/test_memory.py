"""Workers that take more memory than there is, and are ended for it by the kernel or by Ray, in a control group."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.test_workers import allow, hurry, spec, strike
from tests.runtime.runs import Watched, soon
from trainers.runtime.gone import LACKED_MEMORY, THRESHOLD
from trainers.runtime.memory import ENDED, REMEDY

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[2]
HEADROOM = 2**30
"""Bytes that a worker may take beyond what there is in use when it begins to eat."""
ROOM = 8 * 2**30
"""Bytes of a control group of which Ray's monitor lets processes take a part, and which nobody fills."""


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group of memory below the one of this process, in either version."""
    groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    top = Path("/sys/fs/cgroup")
    found = [top / "memory" / path.lstrip("/") for _, names, path in groups if "memory" in names.split(",")]
    found += [top / path.lstrip("/") for _, names, path in groups if not names]
    group = found[0] / f"millrace-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs to be allowed to make a control group: {error}")
    if not limit_of(group).exists():
        group.rmdir()
        pytest.skip("needs a control group that limits memory")
    yield group
    soon(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def limit_of(group: Path) -> Path:
    v1 = group / "memory.limit_in_bytes"
    return v1 if v1.exists() else group / "memory.max"


def limit(group: Path) -> None:
    """Leave what is there now the headroom, and no more."""
    v1 = group / "memory.usage_in_bytes"
    used = int((v1 if v1.exists() else group / "memory.current").read_text())
    limit_of(group).write_text(str(used + HEADROOM))


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Starts a run whose one worker waits after its first minibatch, on a Ray of its own."""
    programs: list[subprocess.Popen[bytes]] = []

    def begin(group: Path, alone: bool = False, **ray: object) -> Watched:
        """alone: in a mount namespace where the group is all that is seen, as in a container. ray: Its settings."""
        plan = tmp_path / "plan"
        plan.mkdir()
        allow(plan, 0, 1)  # that of the preflight
        path = tmp_path / "job.json"
        one = spec(plan, workers={"count": 1, "virtual": 1}, epochs=2)
        path.write_text(one.model_dump_json(exclude_unset=True))
        top = Path("/sys/fs/cgroup") / ("memory" if limit_of(group).name.endswith("in_bytes") else "")
        enter = f"echo $$ > {group}/cgroup.procs" + (f" && mount --bind {group} {top}" if alone else "")
        run = f"{sys.executable} -m deploy.main run {path} --run-dir {tmp_path}/run"
        command = [*(["unshare", "--mount"] if alone else []), "sh", "-c", f"{enter} && exec {run}"]
        environment = os.environ | {f"RAY_{name}": str(value) for name, value in ray.items()}
        programs.append(subprocess.Popen(command, cwd=REPOSITORY, env=environment))
        soon((plan / "held-0").exists)
        return Watched(None, tmp_path / "run")  # type: ignore[arg-type]

    yield begin
    for program in programs:
        program.wait(60)


def told(watched: Watched) -> list[str]:
    return [line["message"] for line in watched.of("log") if line["level"] == "error"]


def test_one_that_the_kernel_ends_is_named_and_replaced(
    tmp_path: Path, control_group: Path, begun: Callable[..., Watched]
) -> None:
    watched = begun(control_group, memory_monitor_refresh_ms=0)  # Ray's own would come first
    limit(control_group)
    strike(tmp_path / "plan", "eat", "0-2")
    hurry(tmp_path / "plan")
    assert watched.end().data["state"] == "SUCCEEDED", watched.events[-5:]
    (fault,) = watched.of("fault")
    assert fault["why"] == "died"
    assert f"{fault['actor']} {ENDED}: {REMEDY}" in told(watched)


def test_a_run_whose_workers_the_kernel_ends_again_and_again_says_so_and_what_to_change(
    tmp_path: Path, control_group: Path, begun: Callable[..., Watched]
) -> None:
    watched = begun(control_group, memory_monitor_refresh_ms=0)  # Ray's own would come first
    limit(control_group)
    for name in ("0-2", "1-1", "2-1"):  # before a first step is reported, which would count as progress
        strike(tmp_path / "plan", "eat", name)
    hurry(tmp_path / "plan")
    end = watched.end().data
    assert (end["state"], end["reason"]) == ("FAILED", "WorkerDied")
    assert f"/worker/1 {ENDED}" in end["message"]
    assert end["message"].endswith(REMEDY)


def test_one_that_rays_monitor_ends_is_told_with_the_coordinator_that_it_ends_before(
    tmp_path: Path, control_group: Path, begun: Callable[..., Watched]
) -> None:
    """The monitor begins with what can be started again, which is the coordinator alone, and goes on with the newest
    processes until there is room."""
    limit_of(control_group).write_text(str(ROOM))
    watched = begun(control_group, alone=True, memory_monitor_refresh_ms=50, memory_usage_threshold=0.35)
    strike(tmp_path / "plan", "eat", "0-2")
    hurry(tmp_path / "plan")
    assert watched.end().data["state"] == "SUCCEEDED", watched.events[-5:]
    assert [line for line in told(watched) if line.endswith(f"{REMEDY}; {THRESHOLD}")]
    assert [line for line in told(watched) if f"/worker/0 {LACKED_MEMORY}: {REMEDY}" in line]
