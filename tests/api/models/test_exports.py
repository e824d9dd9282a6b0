"""Finished models over REST: in parts, in other formats, written once by a process that ends."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from api import Refused, build
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, eventually
from tests.service.fakes import FakeRuns, whole_run
from tests.training.test_export import left_by_a_run
from trainers.models.weight_files import load_weights
from trainers.training.export import FINISHED

STANDS_IN = """
import sys
from pathlib import Path
model, form, target = sys.argv[1:]
with Path({log!r}).open("a") as log:
    print(form, file=log)
if form == "onnx":
    print("onnx is not installed: pip install it")
    sys.exit(3)
if form == "torch.export":
    raise RuntimeError("out of luck")
Path(target).write_bytes(Path(model).read_bytes() + form.encode())
"""


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    started = serve()
    started.runs.script = whole_run
    return started


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """What a process that stands in for the exporting one has been asked for."""
    script, log = tmp_path / "stands_in.py", tmp_path / "log"
    script.write_text(STANDS_IN.format(log=str(log)))
    monkeypatch.setattr("service.exports.exports.COMMAND", (sys.executable, str(script)))
    return lambda: log.read_text().split()


def finished(service: Service, weights: bytes = b"weights", **spec: Any) -> tuple[str, Path]:
    """The id and the run directory of a job that has left a model."""
    job = service.client.submit({"epochs": 1} | spec)
    eventually(lambda: service.client.get(job.id).state.is_terminal)
    run_dir = Path(service.client.get(job.id).run_dir)
    (run_dir / FINISHED).write_bytes(weights)
    return job.id, run_dir


def test_what_shrinks_comes_compressed(service: Service) -> None:
    job_id, _ = finished(service, b"0123456789" * 1000, epochs=9)
    model = service.http.get(f"/v1/jobs/{job_id}/model", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in model.headers, "weights hardly shrink"
    path, kind = f"/v1/jobs/{job_id}/events", {"Accept": "application/json"}
    events = service.http.get(path, headers={**kind, "Accept-Encoding": "gzip"})
    assert events.headers["content-encoding"] == "gzip"
    plain = service.http.get(path, headers={**kind, "Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert events.json() == plain.json()


def test_another_format_is_written_once_until_the_model_changes(
    service: Service, written: Callable[[], list[str]], tmp_path: Path
) -> None:
    job_id, run_dir = finished(service)
    for _ in range(2):
        service.client.model(job_id, tmp_path / "model.pt", form="torch.save")
    assert (tmp_path / "model.pt").read_bytes() == b"weightstorch.save"
    assert written() == ["torch.save"]
    part = service.http.get(f"/v1/jobs/{job_id}/model?format=torch.save", headers={"Range": "bytes=7-"})
    assert (part.status_code, part.content) == (206, b"torch.save")
    assert f'filename="{job_id}-model.pt"' in part.headers["content-disposition"]
    (run_dir / "new").write_bytes(b"better")
    (run_dir / "new").rename(run_dir / FINISHED)
    service.client.model(job_id, tmp_path / "model.pt", form="torch.save")
    assert (tmp_path / "model.pt").read_bytes() == b"bettertorch.save"
    assert len([*(run_dir / "exports").iterdir()]) == 1, "what was written of the earlier one is gone"


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("form", "status", "said"),
    [("onnx", 422, "pip install it"), ("torch.export", 503, "out of luck"), ("pickle", 422, "pickle")],
)
def test_what_cannot_be_written_is_told(service: Service, form: Any, status: int, said: str) -> None:
    job_id, run_dir = finished(service)
    answer = service.http.get(f"/v1/jobs/{job_id}/model", params={"format": form})
    assert answer.status_code == status
    assert said in answer.text
    (run_dir / FINISHED).unlink()
    assert service.http.get(f"/v1/jobs/{job_id}/model?format=torch.save").status_code == 404


@pytest.mark.usefixtures("written")
def test_the_service_runs_no_code_of_its_users(service: Service, tmp_path: Path) -> None:
    job_id, _ = finished(service, model="mine:net")
    with pytest.raises(Refused, match=rf"has the code, `millrace export {job_id} --format onnx` writes it"):
        service.client.model(job_id, tmp_path / "model.onnx", form="onnx")
    service.client.model(job_id, tmp_path / "model.pt", form="torch.save")
    assert (tmp_path / "model.pt").read_bytes() == b"weightstorch.save", "which holds weights alone"
    service.client.model(job_id, tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


def test_the_process_writes_what_pytorch_loads(service: Service, tmp_path: Path) -> None:
    job_id, run_dir = finished(service)
    left_by_a_run(run_dir, "mlp", (1, 8, 8))
    app = build(cli_context(FakeRuns(), tmp_path, service.url))
    out = tmp_path / "model.pt"
    told = CliRunner().invoke(app, ["model", job_id, "--out", str(out)])  # whose ending says the format
    assert (told.exit_code, told.stdout) == (0, f"The model is in {out}\n")
    ours = load_weights(run_dir / FINISHED)
    assert all(torch.equal(tensor, ours[name]) for name, tensor in torch.load(out, weights_only=True).items())
