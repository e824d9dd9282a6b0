"""`millrace serve` with a storage, as a process: how much memory S3 takes, and a new disk."""

import shutil
import subprocess
from pathlib import Path

import httpx2
import pytest

from tests.api.conftest import eventually
from tests.api.http.test_serve import LIMIT_MB, MILLRACE, SHORT, Serving, pss_mb

AS_JSON = {"Accept": "application/json"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_service_that_copies_to_s3_stays_small_and_finds_its_jobs_on_a_new_disk(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_STORAGE", s3)
    state_dir = tmp_path / "state"
    try:
        serving = Serving(state_dir)
        with serving as url, httpx2.Client(base_url=url, trust_env=False, timeout=30) as http:
            spec = SHORT | {"epochs": 2, "checkpoint": {"every_epochs": 1}}
            where = "/v1/jobs/" + http.post("/v1/jobs", json=spec).json()["id"]
            eventually(lambda: http.get(where).json()["state"] == "SUCCEEDED", within_s=120)
            eventually(lambda: http.get(where).json()["storage"].startswith("copied"), within_s=30)
            assert pss_mb(serving.process.pid) < LIMIT_MB
            told = http.get(f"{where}/events", headers=AS_JSON).json()
        shutil.rmtree(state_dir / "runs")
        with Serving(state_dir) as url, httpx2.Client(base_url=url, trust_env=False, timeout=30) as http:
            assert http.get(f"{where}/events", headers=AS_JSON).json() == told
            assert http.get(f"{where}/checkpoints").json()["checkpoints"]
    finally:
        stop = [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=60)
