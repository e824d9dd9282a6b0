"""Tasks on Ray: the same bits on any number of workers and through a kill, and what the log says of them."""

import os
import signal
from pathlib import Path

import pytest

import trainers
from tests.runtime.runs import Watched, finished, start
from trainers import ClusterInfo, TrainSpec
from trainers.training.checkpoint import read_checkpoint

TEXT = "the quick brown fox jumps over the lazy dog; " * 60


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "fox.txt").write_text(TEXT)
    return tmp_path / "fox.txt"


def spec(root: Path, **changes: object) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "task": "language_model",
            "model": {"name": "gpt", "kwargs": {"layers": 1, "heads": 2, "width": 16, "dropout": 0.1}},
            "data": {"name": "text", "root": str(root), "tokens": "characters", "context": 16},
            "workers": {"count": 2, "virtual": 3},
            "optimizer": {"name": "momentum", "lr": 0.05, "momentum": 0.9},
            "batch": 4,
            "epochs": 3,
            **changes,
        }
    )


def bits(run: Watched) -> dict[str, bytes]:
    """The parameters in the last checkpoint."""
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    found = read_checkpoint(Path(run.of("checkpoint")[-1]["path"]))
    return {name: value.numpy().tobytes() for name, value in found.model.items()}


def test_a_language_model_has_the_same_bits_through_a_kill(cluster: ClusterInfo, text: Path, tmp_path: Path) -> None:
    alone = finished("task-alone", spec(text, workers={"count": 1, "virtual": 3}), tmp_path / "alone")
    shaken = start("task-shaken", spec(text, epochs=3, report_every_s=0.05), tmp_path / "shaken")
    shaken.until(lambda event: event.type == "step" and event.data["epoch"] > 0.3)
    os.kill(shaken.of("actors")[-1]["workers"][1]["pid"], signal.SIGKILL)
    shaken.end()
    assert shaken.of("fault"), "the worker was killed too late"
    assert bits(shaken) == bits(alone)
    assert all(audit["trained"] == audit_of(alone) for audit in shaken.of("epoch_audit"))
    for name in ("task-alone", "task-shaken"):
        trainers.cleanup_run(name)


def audit_of(run: Watched) -> int:
    return int(run.of("epoch_audit")[0]["trained"])


@pytest.mark.parametrize("algorithm", ["downpour", "parallel_sgd"])
def test_the_log_tells_what_the_task_measures(algorithm: str, cluster: ClusterInfo, text: Path, tmp_path: Path) -> None:
    run = finished("task-told", spec(text, algorithm=algorithm, workers=2), tmp_path / "run")
    trainers.cleanup_run("task-told")
    (result,) = run.of("result")
    evaluation = run.of("evaluation")[-1]
    assert set(result["metrics"]) == {"loss", "perplexity", "bits_per_character"}
    assert result["test_accuracy"] is None
    assert any(line["message"].startswith("data: ") and "vocabulary 28" in line["message"] for line in run.of("log"))
    assert evaluation["test_perplexity"] == result["metrics"]["perplexity"]
    assert result["test_loss"] < run.of("evaluation")[0]["test_loss"]
    assert result["train_loss"] < 3.4, "a mean over tokens, not over windows"
