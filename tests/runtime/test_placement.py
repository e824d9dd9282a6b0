"""Where shards really are, on a cluster of several nodes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shards_go_where_the_spec_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.runtime.several_nodes", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    runs = {run["job"]: run for run in map(json.loads, done.stdout.splitlines())}
    run = runs["own"]
    assert run["state"] == "SUCCEEDED", run
    assert len(run["shards"]) == 3
    assert len(set(run["shards"])) == 2, "in turn"
    assert not set(run["shards"]) & set(run["workers"])
    run = runs["beside"]
    assert run["state"] == "SUCCEEDED", run
    assert set(run["shards"]) <= set(run["workers"]) - {run["workers"][0]}
    assert runs["full"]["state"] == "FAILED"
    assert runs["full"]["reason"] == "SpecRejected"
    assert "the workers need all of the 3 nodes" in runs["full"]["message"]
