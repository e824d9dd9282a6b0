"""A Ray on this machine whose autoscaler adds nodes that are further raylets of it, from none on.

`ray.cluster_utils.AutoscalingCluster` does the same, but ends every Ray of the machine at its start and at its end.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

from benchmarks.measurement.processes import free_port
from tests.runtime.runs import soon
from trainers.runtime.cluster import RAY_COMMAND, RAY_ENVIRONMENT
from trainers.runtime.processes import descendants, kill_all, start_ticks

STARTS = 3
"""Ray gives up after 15 s to 30 s, which a busy machine exceeds."""
READY_S = 300.0
STORE_BYTES = 80_000_000


@contextmanager
def autoscaled(folder: Path, cpus: int, most: int) -> Iterator[str]:
    """The address of its head, which has no CPUs.

    folder: Short, since Ray's sockets lie in it. cpus: Of each node that is added. most: How many of these there may
    be.
    """
    for left in reversed(range(STARTS)):
        home = folder / str(left)
        home.mkdir()
        port = free_port()
        with _head(home, port, _configuration(port, cpus, most)) as is_ready:
            if is_ready:
                yield f"127.0.0.1:{port}"
                return
    raise AssertionError((home / "head.log").read_text())


def _configuration(port: int, cpus: int, most: int) -> dict[str, Any]:
    """As for `ray up`."""
    provider = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
    worker = {"resources": {"CPU": cpus, "object_store_memory": STORE_BYTES}, "node_config": {}}
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    return {
        "auth": {}, "docker": {}, "initialization_commands": [], "setup_commands": [], "head_setup_commands": [],
        "worker_setup_commands": [], "head_start_ray_commands": [], "worker_start_ray_commands": [], "file_mounts": {},
        "cluster_synced_files": [], "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": [],
        "cluster_name": "autoscaled", "max_workers": most, "upscaling_speed": 1.0, "idle_timeout_minutes": 60,
        "provider": {
            "type": "external", "module": provider, "launch_multiple": True,
            "head_node_id": FAKE_HEAD_NODE_ID, "gcs_address": f"127.0.0.1:{port}",
        },
        "head_node_type": "ray.head.default",
        "available_node_types": {
            "ray.head.default": head, "cpu": worker | {"min_workers": 0, "max_workers": most},
        },
    }  # fmt: skip


@contextmanager
def _head(home: Path, port: int, configuration: dict[str, Any]) -> Iterator[bool]:
    """The head and all that it starts; whether it is ready."""
    (home / "autoscaler.json").write_text(json.dumps(configuration))
    options = {
        "port": port, "num-cpus": 0, "node-ip-address": "127.0.0.1", "temp-dir": home / "ray",
        "object-store-memory": STORE_BYTES, "include-dashboard": False, "include-log-monitor": False,
        "dashboard-agent-listen-port": 0, "metrics-export-port": free_port(), "ray-client-server-port": free_port(),
        "autoscaling-config": home / "autoscaler.json",
    }  # fmt: skip
    command = [sys.executable, "-c", RAY_COMMAND, "start", "--head", "--block"]
    command += [f"--{name}={value}" for name, value in options.items()]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | RAY_ENVIRONMENT
    version_2 = {
        "RAY_enable_autoscaler_v2": "1", "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_CLOUD_INSTANCE_ID": FAKE_HEAD_NODE_ID, "RAY_OVERRIDE_NODE_ID_FOR_TESTING": FAKE_HEAD_NODE_ID,
    }  # fmt: skip
    ready = home / "ray" / "ray_current_cluster"
    with (home / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=ours | version_2, stdout=log, stderr=log)
    try:
        soon(lambda: ready.exists() or process.poll() is not None, READY_S)
        yield process.poll() is None
    finally:
        kill_all([(process.pid, start_ticks(process.pid) or 0), *descendants(process.pid)])
        process.wait()
