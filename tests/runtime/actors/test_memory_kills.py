"""The kernel's count of what it has ended for want of memory, in each of its forms."""

from pathlib import Path

import pytest

from trainers.runtime.memory_kills import memory_kills


@pytest.mark.parametrize(
    ("group", "file", "text", "count"),
    [
        ("0::/user/run", "sys/fs/cgroup/user/run/memory.events", "low 0\noom 3\noom_kill 2\noom_group_kill 1\n", 2),
        ("0::/../outside", "sys/fs/cgroup/memory.events", "oom_kill 1\n", 1),
        ("4:memory:/a/b", "sys/fs/cgroup/memory/a/b/memory.oom_control", "under_oom 0\noom_kill 4\n", 4),
        ("4:cpu,memory:/a/b", "sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 5\n", 5),
        ("0::/", "sys/fs/cgroup/cgroup.procs", "1\n", 7),
    ],
)
def test_the_nearest_group_that_counts_is_asked_and_else_the_machine(
    tmp_path: Path, group: str, file: str, text: str, count: int
) -> None:
    for name, lines in {"proc/self/cgroup": group, "proc/vmstat": "oom_kill 7\n", file: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(lines)
    assert memory_kills(tmp_path) == count


def test_where_nobody_counts_nothing_is_known(tmp_path: Path) -> None:
    assert memory_kills(tmp_path) == -1
