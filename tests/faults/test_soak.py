"""The soak in short: random faults on several raylets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


LONG = pytest.param(600, 20, 0.85, id="ten minutes", marks=[pytest.mark.slow, pytest.mark.timeout(2400)])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("seconds", "every_s", "least_goodput"), [pytest.param(60, 10, 0.0, id="one minute"), LONG])
def test_random_faults_change_no_bit(seconds: int, every_s: int, least_goodput: float) -> None:
    command = [sys.executable, "-m", "tests.faults.soak", "--seed", "1"]
    command += ["--seconds", str(seconds), "--every", str(every_s)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["equal"]
    assert found["audited"]
    assert found["gap_free"]
    assert not found["left"]
    assert len(found["faults"]) >= 3
    assert found["goodput"] >= least_goodput
