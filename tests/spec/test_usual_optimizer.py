"""Which optimizer a spec has that names none."""

from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.local_runs import LocalRun
from trainers import TrainSpec
from trainers.training.messages import WorkerReport


@pytest.mark.parametrize(
    ("spec", "name", "lr"),
    [
        ({}, "momentum", 0.02),
        ({"algorithm": "hybrid"}, "momentum", 0.02),
        ({"algorithm": {"name": "sync", "form": "parameter_server", "backup": 1}}, "momentum", 0.02),
        ({"algorithm": "downpour"}, "adagrad", 0.003),
        ({"algorithm": {"name": "mixed", "group": 1}}, "adagrad", 0.003),
        ({"algorithm": {"name": "mixed", "group": 1, "push": "delta"}}, "adamw", 0.001),
        ({"algorithm": "downpour", "optimizer": {"lr": 0.5}}, "adagrad", 0.5),
        ({"algorithm": "downpour", "optimizer": "momentum"}, "momentum", 0.02),
        ({"algorithm": "downpour", "optimizer": {"name": "momentum", "lr": 0.5}}, "momentum", 0.5),
        ({"optimizer": {"lr": 0.5}}, "momentum", 0.5),
    ],
)
def test_it_is_the_algorithms(spec: dict[str, Any], name: str, lr: float) -> None:
    found = TrainSpec.model_validate({"workers": 4} | spec)
    assert (found.optimizer.name, found.optimizer.lr) == (name, lr)
    assert TrainSpec.model_validate(found.model_dump()) == found, "what is stored says so itself"


def test_an_algorithm_that_is_wrong_is_the_only_error() -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        TrainSpec.model_validate({"algorithm": "downpuor"})


@dataclass
class Losses(LocalRun):
    """A run that remembers the mean loss of each report."""

    losses: list[float] = field(default_factory=list)

    def _report(self, report: WorkerReport) -> None:
        self.losses += [report.metrics.loss / report.metrics.steps] if report.metrics.steps else []
        super()._report(report)


def test_it_bears_gradients_that_come_late(tmp_path: Path) -> None:
    """Eight workers, so that each gradient is seven updates late: the default of synchronous training gets nowhere."""
    base = {"algorithm": "downpour", "workers": 8, "model": "lenet5", "data": "digits", "batch": 16, "epochs": 3}
    last = {}
    for name, fields in {"usual": {}, "momentum": {"optimizer": "momentum"}}.items():
        run = Losses(TrainSpec.model_validate(base | fields), tmp_path / name)
        run.train()
        last[name] = mean(run.losses[-8:])
    assert last["usual"] < 0.8 * last["momentum"]
