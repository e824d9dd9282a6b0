"""A service with something of everything: a job in each state, projects, a registered model."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.api.conftest import Service, eventually
from tests.api.page.runs import train, train_on_text
from tests.service.fakes import FakeRun
from trainers.events import State
from trainers.runtime.cluster import Resources
from trainers.training.export import FINISHED

LOST = "was lost with its node 192.0.2.1; 1 worker goes on, and a new one is asked for"
FAILURE = "worker/0: RuntimeError: the loss is not finite at step 40; lower optimizer.lr, or clip gradients"
SPEC = {"algorithm": "downpour", "data": "digits", "model": "mlp", "workers": 2, "epochs": 5}


@dataclass(frozen=True)
class Scene:
    """The jobs of a service."""

    jobs: dict[str, str]
    """State -> id of the job in it."""
    of_text: str
    """The id of a language model's."""


def job_states(service: Service) -> Scene:
    """Submit a job for each state, and bring it there."""
    service.runs.total = Resources(cpus=16, gpus=2)
    service.client.create_project("vision", members=["ann", "bob"], admins=["ann"], quota={"cpus": 12, "jobs": 8})
    service.client.create_project("speech", share=2.0, quota={"gpus": 1, "disk_bytes": 10**11})
    acts: dict[str, Callable[[Service, FakeRun], None]] = {
        "SUCCEEDED": _succeed, "FAILED": _fail, "CANCELLED": _cancelled, "PAUSED": _paused, "RUNNING": _run,
        "STARTING": _start, "PAUSING": _pausing, "RECOVERING": _recover, "CANCELLING": _cancelling,
    }  # fmt: skip
    jobs = {}
    for state, act in acts.items():
        labels = {"team": "blue", "attempt": str(len(jobs) + 1)}
        project = "vision" if len(jobs) % 2 else "default"
        spec = SPEC | {"name": f"digits-{state.lower()}", "labels": labels, "project": project}
        job = service.client.submit(spec)
        act(service, service.started(job.id))
        eventually(lambda state=state, job=job: service.client.get(job.id).state == State(state))  # type: ignore[misc]
        jobs[state] = job.id
    text = service.client.submit(
        {"name": "small-gpt", "task": "language_model", "data": "text", "epochs": 5, "workers": 2}
    )
    train_on_text(service.started(text.id), 3)
    for notes in ("the first that was good enough", "with a longer warm-up"):
        job = service.client.submit(SPEC | {"name": "for-the-registry", "workers": 1})
        _succeed(service, service.started(job.id))
        eventually(lambda job=job: service.client.get(job.id).state is State.SUCCEEDED)  # type: ignore[misc]
        service.client.register(job.id, "digits", notes=notes)
    waits = service.client.submit(SPEC | {"name": "digits-queued", "workers": 12})
    service.client.submit(SPEC | {"name": "waits-behind-it", "workers": 8, "project": "vision"})
    jobs["QUEUED"] = waits.id
    return Scene(jobs, text.id)


def _run(service: Service, run: FakeRun) -> None:
    train(run, 2)
    run.emit("fault", actor=f"{run.job_id}/worker/1", why=LOST, examples=2000)
    run.emit("resize", workers=1, joined=[], left=[f"{run.job_id}/worker/1"], examples=2000)
    run.emit("resize", workers=2, joined=[f"{run.job_id}/worker/2"], left=[], examples=2000)


def _succeed(service: Service, run: FakeRun) -> None:
    train(run, 5, slowly=2.0)
    (run.run_dir / FINISHED).write_bytes(f"weights of {run.job_id}".encode())
    run.emit("result", **_result(run))
    run.state(State.SUCCEEDED, "Completed", "trained to the end")


def _result(run: FakeRun) -> dict[str, object]:
    metrics = {"accuracy": 0.904, "loss": 0.31}
    return {
        "job_id": run.job_id, "state": "SUCCEEDED", "epochs": 5, "examples": 5000, "test_accuracy": 0.904,
        "test_loss": 0.31, "train_loss": 0.43, "metrics": metrics, "headline": "accuracy", "higher_is_better": True,
        "examples_per_s": 540.0, "wall_s": 95.0, "algorithm": "downpour", "workers": run.size,
        "model_path": "model.safetensors", "message": "", "best": None,
    }  # fmt: skip


def _fail(service: Service, run: FakeRun) -> None:
    train(run, 1, slowly=9.0)
    run.emit("log", level="error", message=FAILURE)
    run.state(State.FAILED, "TrainingFailed", FAILURE)


def _cancelled(service: Service, run: FakeRun) -> None:
    train(run, 1)
    service.client.cancel(run.job_id)
    run.state(State.CANCELLED, "Cancelled", "cancelled after 1000 examples; checkpoint 1000 is its last")


def _paused(service: Service, run: FakeRun) -> None:
    train(run, 3, slowly=4.0)
    service.client.pause(run.job_id)
    run.state(State.PAUSED, "Paused", "paused after 3000 examples; it goes on from there")


def _start(service: Service, run: FakeRun) -> None:
    run.state(State.STARTING, "StartingWorkers", "starts 2 workers and 1 shard")


def _pausing(service: Service, run: FakeRun) -> None:
    train(run, 1)
    service.client.pause(run.job_id)


def _recover(service: Service, run: FakeRun) -> None:
    train(run, 1)
    run.emit("fault", actor=f"{run.job_id}/worker/1", why=LOST, examples=1000)
    run.state(State.RECOVERING, "WorkerLost", LOST)


def _cancelling(service: Service, run: FakeRun) -> None:
    train(run, 1)
    service.client.cancel(run.job_id)
