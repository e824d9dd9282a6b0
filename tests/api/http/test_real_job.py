"""One job on a real Ray through real HTTP: its stream cut ten times, its server restarted in between."""

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import trainers
from api import AppConfig, Client, Server, Streams, bind, create_app
from benchmarks.measurement.processes import free_port
from service import ManagerConfig, Store, SweepManager, build_manager
from tests.api.conftest import eventually
from tests.api.streams import assert_whole, read_with_cuts
from tests.runtime.runs import changes
from trainers import ClusterInfo, State

JOB = {
    "name": "whole",
    "algorithm": {"name": "downpour", "max_staleness": 4},
    "model": "mlp",
    "optimizer": {"name": "momentum", "lr": 0.02},
    "epochs": 60,
    "batch": 8,
    "report_every_s": 0.1,
    "evaluate": {"every_epochs": 20},
    "checkpoint": {"every_epochs": 30},
}


@contextmanager
def server(folder: Path, info: ClusterInfo, port: int) -> Iterator[str]:
    """A service on this process's Ray, with its store in `folder`."""
    listening = bind("127.0.0.1", port)
    store, streams = Store.open(f"sqlite:///{folder / 'jobs.db'}"), Streams(ping_s=15)
    manager = build_manager(store, trainers, ManagerConfig(folder / "runs", folder))
    sweeps = SweepManager(manager, folder / "sweeps", folder)
    running = Server(create_app(manager, sweeps, info, AppConfig(streams)), streams)
    thread = threading.Thread(target=lambda: asyncio.run(running.serve([listening])))
    thread.start()
    try:
        eventually(lambda: running.started)
        yield "http://{}:{}".format(*listening.getsockname())
    finally:
        running.close()
        thread.join(120)
        assert not thread.is_alive()
        listening.close()
        store.close()


@pytest.mark.long
def test_a_job_whose_stream_is_cut_and_whose_server_is_restarted_comes_out_whole(
    tmp_path: Path, cluster: ClusterInfo
) -> None:
    with server(tmp_path, cluster, port := free_port()) as url, Client(url) as client:
        job = client.submit(JOB)
        for event in client.events(job.id):
            if event.type == "step":
                break
        *_, last = client.trace(job.id, steps=3, worker=1)
        client.download_trace(job.id, last.data["file"], tmp_path / "trace.json.gz")
        assert [one.name for one in client.traces(job.id)] == [last.data["file"]]
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    ours = [one for one in trace["traceEvents"] if one.get("cat") == "millrace"]
    assert trace["otherData"] == {"worker": f"{job.id}/worker/1", "steps": 3}
    assert {one["name"] for one in ours} >= {"step", "data", "fetch", "forward", "backward", "push", "waiting"}
    assert all(one["ph"] != "X" or (one["ts"] >= 0 and one["dur"] >= 0) for one in trace["traceEvents"])
    # The server is gone, the run goes on; the next one finds it.
    with server(tmp_path, cluster, port) as url, Client(url) as client:
        assert client.get(job.id).state in (State.RUNNING, State.SUCCEEDED)
        events = read_with_cuts(url, job.id, 10)
        assert_whole(events)
        states = changes(e.data["state"] for e in events if e.type == "state")
        assert states == ["QUEUED", "STARTING", "RUNNING", "SUCCEEDED"]
        done = client.wait(job.id)
        assert (done.state, done.id) == (State.SUCCEEDED, job.id)
        assert done.result.test_accuracy is not None
        assert done.result.test_accuracy > 0.9
        assert client.get(job.id).state == State.SUCCEEDED
