"""A region is cut off for half a minute, goes on by itself, and is taken back in."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.links import namespaces
from tests.faults.regions.cut import EPOCHS, EXAMPLES
from trainers.runtime.cluster.patience import needed

ROOT = Path(__file__).parents[3]
CUT_S = 30.0
PATIENT_RAY = {name: str(value) for name, value in needed(600).items()}


@pytest.mark.long
@pytest.mark.timeout(660)
@pytest.mark.skipif(not namespaces.is_possible(), reason="a link needs root and iproute2")
def test_a_region_that_is_cut_off_goes_on_alone_and_is_taken_back_in(tmp_path: Path) -> None:
    """Nobody takes it for lost: no fault, no other generation, and every example once."""
    command = [sys.executable, "-m", "tests.faults.regions.cut", str(tmp_path), str(CUT_S)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | PATIENT_RAY, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["end"]["state"] == "SUCCEEDED", found
    assert (found["faults"], found["resizes"]) == ([], [])
    assert found["audits"] == [[EXAMPLES, 0, 0]] * EPOCHS
    before, after = found["apart_steps"]
    assert before == 0
    assert after >= 2 * 5, "both workers made a round of steps at least"
    assert found["trained_meanwhile"] > 0
    assert found["result"]["unsent_examples"] == 0
    assert any("was cut off from the shards" in said for said in found["told"])
