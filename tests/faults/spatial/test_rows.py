"""`spatial`, whose rows are divided anew where workers come and go."""

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.faults.hybrid.divided import divided_anew
from tests.faults.test_workers import DATA, assert_equal, ended_well, fault, has_trained, hurry, resized, spec
from tests.runtime.runs import start
from trainers import ClusterInfo, TrainSpec

pytestmark = pytest.mark.slow


def train(plan: Path, pause_s: float, least: int = 1) -> TrainSpec:
    return spec(
        plan,
        model={"name": "faulty:in_rows", "kwargs": {"plan": str(plan), "pause_s": pause_s}},
        algorithm="spatial",
        data=DATA,
        workers={"count": 2, "virtual": 3, "min": least},
        optimizer={"name": "momentum", "lr": 0.002, "weight_decay": 0.001},
        clip={"norm": 0.5},
    )


@pytest.fixture(scope="module")
def clean(cluster: ClusterInfo, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """What a run that nobody disturbs comes to."""
    folder = tmp_path_factory.mktemp("clean")
    return ended_well(start("faults-rows-clean", train(folder / "plan", 0), folder / "run"), 40)


@pytest.mark.timeout(300)
def test_a_run_with_as_many_workers_in_every_step_has_the_same_bits_through_a_kill(
    cluster: ClusterInfo, tmp_path: Path, clean: dict[str, torch.Tensor]
) -> None:
    """It waits for the one that takes the place of the lost one."""
    plan = tmp_path / "plan"
    watched = start("faults-rows-bits", train(plan, 0.1, least=2), tmp_path / "run")
    has_trained(watched)
    os.kill(watched.of("actors")[0]["workers"][1]["pid"], signal.SIGKILL)
    fault(watched)
    resized(watched, 2)
    has_trained(watched)
    hurry(plan)
    assert_equal(ended_well(watched, 40), clean)


@pytest.mark.timeout(300)
def test_rows_are_divided_anew_and_nothing_but_a_step_is_lost(
    cluster: ClusterInfo, tmp_path: Path, clean: dict[str, torch.Tensor]
) -> None:
    """The same numbers, to float tolerance."""
    plan = tmp_path / "plan"
    watched = start("faults-rows", train(plan, 0.1), tmp_path / "run")  # it is not to end meanwhile
    divided_anew(watched, plan, clean, (1, 3))
    assert all(before["examples"] <= step["examples"] for before, step in pairwise(watched.of("step")))
