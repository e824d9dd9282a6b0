"""Tasks on Ray: the same bits on any number of workers and through a kill, and what the log says of them."""

import os
import signal
from pathlib import Path

import pytest

import trainers
from service import read_spec_file
from tests.faults.test_workers import allow
from tests.runtime.runs import Watched, finished, soon, start
from trainers import ClusterInfo, TrainSpec
from trainers.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
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


@pytest.mark.long
def test_a_language_model_has_the_same_bits_through_a_kill(cluster: ClusterInfo, text: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.mkdir()
    allow(plan, 1, 8)  # minibatches of worker 1, which is killed there; alone there is only worker 0
    kwargs = {"layers": 1, "heads": 2, "width": 16, "dropout": 0.1, "plan": str(plan)}
    model = {"name": "tests.tasks.heldnets:gpt", "kwargs": kwargs}
    alone = finished("task-alone", spec(text, model=model, workers={"count": 1, "virtual": 3}), tmp_path / "alone")
    shaken = start("task-shaken", spec(text, model=model), tmp_path / "shaken")
    soon((plan / "held-1").exists)
    shaken.until(lambda event: event.type == "actors")
    os.kill(shaken.of("actors")[-1]["workers"][1]["pid"], signal.SIGKILL)
    shaken.end()
    assert shaken.of("fault")
    assert bits(shaken) == bits(alone)
    assert all(audit["trained"] == audit_of(alone) for audit in shaken.of("epoch_audit"))
    for name in ("task-alone", "task-shaken"):
        trainers.cleanup_run(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "sets"),
    [
        ("scenes/segmentation", ["model.kwargs.width=4", "data.root=nowhere", "data.limit=48"]),
        ("scenes/detection", ["data.loader_processes=0", "data.root=nowhere", "data.limit=6", "batch=1"]),
        ("sentences/job", ["data.loader_processes=0", "data.limit=96"]),
        ("masked_words/job", ["model.kwargs.num_hidden_layers=1", "model.kwargs.hidden_size=16", "data.limit=96"]),
        ("regression", []),
    ],
)
def test_the_other_tasks_have_the_same_bits_through_a_kill(
    name: str, sets: list[str], cluster: ClusterInfo, tmp_path: Path
) -> None:
    train, job = regression(tmp_path) if name == "regression" else example(name, sets), name.replace("/", "-")
    shaken = start(f"{job}-shaken", train, tmp_path / "shaken")
    shaken.until(lambda event: event.type == "step" and event.data["epoch"] > 0.3)
    os.kill(shaken.of("actors")[-1]["workers"][1]["pid"], signal.SIGKILL)
    shaken.end()
    assert shaken.of("fault"), "the worker was killed too late"
    alone = finished(f"{job}-alone", with_workers(train, 1), tmp_path / "alone")
    assert bits(shaken) == bits(alone)
    assert {audit["trained"] for audit in shaken.of("epoch_audit")} == {audit_of(alone)}
    for run in (shaken, alone):
        trainers.cleanup_run(run.run.job_id)


def example(name: str, sets: list[str]) -> TrainSpec:
    """An example's spec, long enough to be disturbed."""
    shared = ["epochs=30", "report_every_s=0.05", "algorithm=sync", "evaluate.every_epochs=0", *sets]
    train = read_spec_file(ROOT / "examples" / f"{name}.yaml", shared).resolved(ROOT).train
    return with_workers(train, 2)


def regression(folder: Path) -> TrainSpec:
    rows = "".join(f"{i % 7},{i % 5},{(i % 7) * 2 - i % 5}\n" for i in range(90))
    (folder / "table.csv").write_text("a,b,c\n" + rows)
    data = {"name": "csv", "root": str(folder / "table.csv"), "target": "c"}
    fields = {"task": "regression", "model": "mlp", "data": data, "batch": 4, "epochs": 60, "report_every_s": 0.05}
    return with_workers(TrainSpec.model_validate(fields | {"optimizer": {"name": "momentum", "lr": 0.001}}), 2)


def with_workers(train: TrainSpec, count: int) -> TrainSpec:
    return TrainSpec.model_validate(train.model_dump() | {"workers": {"count": count, "virtual": 3}})


def audit_of(run: Watched) -> int:
    return int(run.of("epoch_audit")[0]["trained"])


@pytest.mark.parametrize("algorithm", ["downpour", pytest.param("parallel_sgd", marks=pytest.mark.long)])
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
