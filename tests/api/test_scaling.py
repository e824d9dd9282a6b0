"""The tables of a sweep over numbers of workers, over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from api import Refused
from api.http import fair_process
from service import parse_sweep
from service.sweeps import control
from tests.api.conftest import Service
from tests.cost.test_planning import profile_of
from tests.service.speedup.test_study import DOWNPOUR, RUNS, ran
from trainers.cost.kept import keep_profile


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one, where plans look for profiles: in this process, since another keeps the home that it began with."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(fair_process, "own_process", lambda: ThreadPoolExecutor(1))


@pytest.mark.usefixtures("home")
def test_a_sweep_over_workers_is_a_study(service: Service, tmp_path: Path) -> None:
    ran(tmp_path / "sweeps" / "sweep-1", "accuracy=0.8", RUNS)
    found = service.client.scaling("sweep-1")
    assert [(row.workers, row.predicted_per_s) for row in found.rows] == [(1, None), (2, None)]
    assert found.rows[1].speed_up == pytest.approx(20 / 12)
    assert found.rows[1].target_s == 12
    text = service.http.get("/v1/sweeps/sweep-1/scaling", headers={"Accept": "text/markdown"}).text
    assert "## Time to an error of 20.00 %" in text
    keep_profile(DOWNPOUR.train, profile_of(DOWNPOUR.train))
    predicted = [row.predicted_per_s for row in service.client.scaling("sweep-1").rows]
    assert all(predicted)
    assert found.rows[0].examples_per_s == 100


def test_another_sweep_is_none(service: Service, tmp_path: Path) -> None:
    both = {"job": {"data": "digits", "model": "mlp"}, "axes": {"workers.count": [1, 2], "seed": [0, 1]}}
    control.begin(tmp_path / "sweeps" / "sweep-2", "sweep-2", parse_sweep(both))
    with pytest.raises(Refused) as refused:
        service.client.scaling("sweep-2")
    assert refused.value.problem.status == 404
    assert "varies workers.count, seed; only a list of workers.count alone makes a study" in str(refused.value)
    with pytest.raises(Refused):
        service.client.scaling("sweep-3")
