"""`millrace serve` as a process, with a real Ray: stopped and started again, and how much memory it takes."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

MILLRACE = Path(sys.executable).parent / "millrace"
LIMIT_MB = 250


class Serving:
    """One `millrace serve`, stopped at the end."""

    def __init__(self, state_dir: Path) -> None:
        command = [MILLRACE, "serve", "--state-dir", str(state_dir), "--port", "0", "--num-cpus", "2"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        self.said = ""

    def __enter__(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if (url := re.search(r"serves on (http://\S+)", line)) is not None:
                return url[1]
        raise AssertionError(f"it does not serve: {self.process.communicate()}")

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            stdout, stderr = self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        self.said += stdout + stderr


def pss_mb(pid: int) -> float:
    """Memory of a process, what it shares counted by its part."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)[1]) / 1024  # type: ignore[index]


def using(folder: str) -> list[int]:
    """Processes that name a folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if folder.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_a_server_comes_and_goes_while_its_ray_stays(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    try:
        first = Serving(state_dir)
        with first as url, httpx2.Client(base_url=url, trust_env=False, timeout=30) as http:
            assert http.get("/readyz").json() == {"status": "ok"}
            cluster = http.get("/v1/cluster").json()
            assert cluster["total"]["cpus"] == 2
            answer = http.post("/v1/jobs", json={"workers": 3})
            assert answer.status_code == 422
            assert "needs 3 CPUs" in answer.json()["detail"]
            assert http.get("/v1/jobs").json()["jobs"] == []
            assert http.get("/openapi.json").status_code == 200
            assert pss_mb(first.process.pid) < LIMIT_MB
            other = subprocess.run(
                [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)],
                capture_output=True, text=True, check=False, timeout=30,
            )  # fmt: skip
            assert other.returncode == 2
            assert "another server uses" in other.stderr
        assert first.process.returncode == 0, first.said
        assert "go on" in first.said
        with Serving(state_dir) as url, httpx2.Client(base_url=url, trust_env=False, timeout=30) as http:
            assert http.get("/v1/cluster").json()["address"] == cluster["address"]
    finally:
        temp = re.search(r'"temp_dir": "([^"]+)"', (state_dir / "cluster.json").read_text())
        stopped = subprocess.run(
            [MILLRACE, "serve", "--stop-cluster", "--state-dir", str(state_dir)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert "Ray has ended" in stopped.stdout
    assert temp is not None
    assert using(temp[1]) == []
    assert not Path(temp[1]).exists()
    assert not (state_dir / "cluster.json").exists()
