"""On how many threads a training thread computes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading
from pathlib import Path

import torch

torch.set_num_threads(1)
SHAPES = ((10, 8, 128), (128, 32, 64), (10, 500, 800), (100, 37, 301), (12, 16, 1000))

def products():
    found = []
    for rows, between, columns in SHAPES:
        draws = torch.Generator().manual_seed(rows)
        a, b = (torch.randn(between, n, generator=draws) for n in (rows, columns))
        found.append(a.t().mm(b))
    return torch.cat([one.flatten() for one in found])

def of_a_thread_that_was_told_nothing():
    found = []
    thread = threading.Thread(target=lambda: found.append(products()))
    thread.start()
    thread.join()
    return found[0]

expected = products()
if torch.equal(expected, of_a_thread_that_was_told_nothing()):
    sys.exit("the same bits on any number of threads")

from tests.local_runs import LocalRun
from trainers.models.replica import Replica
from trainers.spec import TrainSpec

seen, compute = [], Replica.gradient

def gradient(*given, **named):
    seen.append(torch.equal(products(), expected))
    return compute(*given, **named)

Replica.gradient = gradient
spec = {"model": "mlp", "data": {"name": "digits", "limit": 16}, "batch": 4, "epochs": 1, "workers": 2}
LocalRun(TrainSpec.model_validate(spec), Path(sys.argv[1])).train()
print(len(seen), all(seen))
"""


def test_a_training_thread_multiplies_from_its_first_step_on_as_the_spec_says(tmp_path: Path) -> None:
    """MKL's default of more threads than the spec's shows in the bits of products, on processors where they differ."""
    env = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")], capture_output=True, text=True, check=False, env=env
    )
    if found.stderr.strip() == "the same bits on any number of threads":
        pytest.skip("these products have the same bits on any number of threads here")
    assert (found.returncode, found.stdout.split()) == (0, ["4", "True"]), found.stderr
