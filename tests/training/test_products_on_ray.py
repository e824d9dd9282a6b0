"""The choice of products through Ray: told once, the same for all workers, in the checkpoints, through a kill."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import trainers
from tests.runtime.runs import Watched, finished, spec, start
from trainers import ClusterInfo
from trainers.models.products.choice import UNMEASURED
from trainers.training.checkpoint import Checkpoint, read_checkpoint

LARGE: dict[str, Any] = {"model": {"name": "mlp", "kwargs": {"hidden": 1024}}, "epochs": 20}


def kept(run: Watched) -> Checkpoint:
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    return read_checkpoint(Path(run.of("checkpoint")[-1]["path"]))


@pytest.mark.long
def test_all_workers_of_a_run_multiply_alike_through_a_kill(cluster: ClusterInfo, tmp_path: Path) -> None:
    workers = {"count": 2, "virtual": 3}
    alone = finished("products-alone", spec(**LARGE, workers={"count": 1, "virtual": 3}), tmp_path / "alone")
    shaken = start("products-shaken", spec(**LARGE, workers=workers, report_every_s=0.05), tmp_path / "shaken")
    shaken.until(lambda event: event.type == "step" and event.data["epoch"] > 0.3)
    os.kill(shaken.of("actors")[-1]["workers"][0]["pid"], signal.SIGKILL)  # the one that has measured
    shaken.end()
    assert shaken.of("fault"), "the worker was killed too late"
    one, other = kept(alone), kept(shaken)
    assert one.products == other.products != UNMEASURED
    assert {name: value.tolist() for name, value in one.model.items()} == {
        name: value.tolist() for name, value in other.model.items()
    }
    told = [line["message"] for line in shaken.of("log") if "oneDNN" in line["message"]]
    assert told == [one.products.sentence]
    for name in ("products-alone", "products-shaken"):
        trainers.cleanup_run(name)
