"""The kernel's count of what it has ended for want of memory, in each of its forms."""

from pathlib import Path

import pytest

from tests.runtime.runs import spec
from trainers.metrics import StepMetrics
from trainers.runtime.memory import memory_kills, memory_told
from trainers.training.messages import WorkerReport


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


@pytest.mark.parametrize(
    ("fields", "gpu", "told"),
    [
        ({"optimizer": "sgd"}, 0, "812 MB resident in its first step, at least 12.0 MB of it two versions"),
        ({"optimizer": "adam", "ema": {"decay": 0.9}}, 0, "at least 44.0 MB of it two versions of parameters"),
        (
            {"optimizer": "adam", "algorithm": "downpour"},
            5,
            "812 MB resident and 5.0 MB on its GPU in its first step, ",
        ),
        ({"optimizer": "torch.optim:NAdam"}, 0, "in its first step, an unknown part of it two versions"),
    ],
)
def test_what_was_taken_is_told_beside_what_was_to_be_expected(fields: dict[str, object], gpu: int, told: str) -> None:
    report = WorkerReport(3, 0, StepMetrics(), peak_bytes=(812_000_000, gpu * 1_000_000))
    assert told in memory_told(spec(**fields), 1_000_000, report)
