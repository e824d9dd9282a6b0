"""Images that one worker alone cannot train within its memory."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

LIMIT_BYTES = 1_400_000_000
MODULE = "tests.equivalence.spatial.large"
ROOT = Path(__file__).parents[3]


def workers(size: int, folder: Path, limit: int) -> list[subprocess.CompletedProcess[str]]:
    """A run on so many workers, each a process; what came of each."""
    folder.mkdir()
    (folder / "data").mkdir()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", MODULE, str(rank), str(size), str(folder), str(limit)],
            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]  # fmt: skip
    ends = [process.communicate() for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(started, ends, strict=True)
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_workers_train_images_of_4000_x_4000_that_one_cannot_hold(tmp_path: Path) -> None:
    """Each within a limit that the system holds it to; without one, one worker comes to the same parameters."""
    shared = workers(4, tmp_path / "four", LIMIT_BYTES)
    assert [end.returncode for end in shared] == [0] * 4, shared[0].stderr
    (alone,) = workers(1, tmp_path / "alone", LIMIT_BYTES)
    assert alone.returncode != 0
    assert "allocate memory" in alone.stderr or "MemoryError" in alone.stderr
    (free,) = workers(1, tmp_path / "free", 0)
    assert free.returncode == 0, free.stderr
    found, wanted = (np.load(tmp_path / name / "params.npy") for name in ("four", "free"))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    peaks = [json.loads(end.stdout)["peak_bytes"] for end in (*shared, free)]
    assert 2 * max(peaks[:4]) < peaks[4]  # with the memory that the four share, which the limit does not count
