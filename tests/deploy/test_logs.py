"""`MILLRACE_LOG_FORMAT=json`: a JSON object a line, with the job and the worker, in the service and in its runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from api import Client
from deploy.main import cli_context
from deploy.settings import Settings
from tests.api.http.test_serve import MILLRACE, Serving
from tests.docs.readme import ROOT
from trainers.events import State

JOB = {
    "data": {"name": "digits", "limit": 203}, "model": "mlp", "batch": 7, "epochs": 1,
    "algorithm": "downpour", "workers": {"count": 2, "cpus": 0.5}, "ps": {"shards": 1},
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0},
}  # fmt: skip


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_service_and_workers_write_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_LOG_FORMAT", "json")
    state_dir = tmp_path / "state"
    serving = Serving(state_dir)
    try:
        with serving as url, Client(url) as client:
            job = client.wait(client.submit(JOB | {"code": str(talkative(tmp_path)), "model": "talk:net"}).id)
            assert job.state is State.SUCCEEDED, job.message
        told = [one for one in objects(serving.said) if one.get("job") == job.id]
        assert [one["state"] for one in told if "state" in one][-2:] == ["RUNNING", "SUCCEEDED"]
        assert {"asctime", "levelname", "message"} <= set(told[0])
        logs = Path(json.loads((state_dir / "cluster.json").read_text())["temp_dir"]) / "session_latest" / "logs"
        lines = [one for path in logs.glob("worker-*") for one in objects(path.read_text(errors="replace"))]
        workers = {one["worker"] for one in lines if one.get("job") == job.id and one["message"] == "a net is built"}
        assert {f"{job.id}/worker/0", f"{job.id}/worker/1"} <= workers
    finally:
        subprocess.run([MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)], check=False, timeout=60)


def talkative(tmp_path: Path) -> Path:
    """A user's code that logs."""
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "talk.py").write_text(
        "import logging\nfrom torch import nn\n"
        "def net(num_classes, in_channels):\n"
        "    logging.getLogger(__name__).warning('a net is built')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))\n"
    )
    return folder


def test_another_format_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.main", "list"], env=os.environ | {"MILLRACE_LOG_FORMAT": "xml"},
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 2
    assert "MILLRACE_LOG_FORMAT" in done.stderr


@pytest.mark.parametrize(
    "tracker", [{"mlflow_uri": "http://127.0.0.1:1"}, {"wandb_project": "mine"}, {"aim_repo": "mine"}]
)
def test_a_tracker_that_is_not_installed_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: dict[str, str]
) -> None:
    from api import CannotServe, ServeOptions
    from service import Tracking

    monkeypatch.setattr(Tracking, "is_installed", False)
    serve = cli_context(Settings(**tracker)).serve
    with pytest.raises(CannotServe, match="is not installed: pip install"):
        serve(ServeOptions("127.0.0.1", 0, tmp_path / "state", None, None))
    assert not (tmp_path / "state" / "cluster.json").exists()
