"""What a Ray of our own is started with."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from trainers import ClusterInfo
from trainers.runtime.cluster import absent_agent
from trainers.runtime.processes import descendants

pytestmark = pytest.mark.long


def test_it_has_no_process_that_no_run_needs(cluster: ClusterInfo) -> None:
    commands = [" ".join(psutil.Process(pid).cmdline()) for pid, _ in descendants(os.getpid())]
    for needed in ("gcs_server", "raylet/raylet", "RuntimeEnvAgent", absent_agent.__file__):
        assert [command for command in commands if needed in command], needed
    own = [one for one in commands if "raylet/raylet" not in one and absent_agent.__file__ not in one]  # name others
    for left_out in ("dashboard/dashboard.py", "dashboard/agent.py", "DashboardAgent", "monitor.py"):
        assert not [command for command in own if left_out in command], left_out


def test_the_stand_in_for_the_agent_tells_no_ports_and_ends_with_who_started_it(tmp_path: Path) -> None:
    program = f"""
import subprocess, sys
agent = subprocess.Popen([sys.executable, {absent_agent.__file__!r}, "-u", "--session-dir={tmp_path}", "--node-id=17"])
print(agent.pid, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as raylet:
        assert raylet.stdout is not None
        agent = psutil.Process(int(raylet.stdout.readline()))
        ports = [tmp_path / f"{port}_17" for port in absent_agent.PORTS]
        while not all(port.exists() for port in ports):
            assert agent.is_running()
            time.sleep(0.02)
        assert {port.read_text() for port in ports} == {"-1"}
        raylet.kill()
    agent.wait(timeout=60)
