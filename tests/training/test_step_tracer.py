"""A trace of some steps: what is in it, with every algorithm, and that the run computes the same."""

import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.local_runs import LocalRun
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint
from trainers.training.chrome_trace import OURS
from trainers.training.step_tracer import StepTracer

PASSES = {"step", "data", "forward", "backward", "buffers"}
ALONE = {"step", "data", "forward", "backward", "waiting", "fetch", "push"}
WAYS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "sync": ({"name": "sync"}, PASSES | {"sums", "update", "gather", "waiting"}),
    "fast": ({"name": "sync", "reduction": "fast", "all_reduce": "ring"}, PASSES | {"sums", "waiting"}),
    "shards": ({"name": "sync", "form": "parameter_server"}, ALONE | {"buffers"}),
    "backup": ({"name": "sync", "form": "parameter_server", "backup": 1}, ALONE | {"claim"}),
    "downpour": ({"name": "downpour", "num_fetch": 2, "num_push": 2}, ALONE | {"update"}),
    "pipelined": ({"name": "downpour", "push": "layerwise", "backprop": {"groups": 2, "delay": 1}}, ALONE),
    "mixed": ({"name": "mixed", "group": 3, "num_fetch": 2}, ALONE - {"push"} | {"sums", "update"}),
    "groups": ({"name": "mixed", "group": 3, "push": "delta", "steps": 2}, ALONE - {"push"} | {"sums", "update"}),
    "hybrid": (
        {"name": "hybrid"},
        PASSES | {"exchange", "turn", "sums", "update", "gather", "waiting"},
    ),
    "spatial": (
        {"name": "spatial", "until": "pool"},
        PASSES | {"exchange", "sums", "update", "gather", "waiting"},
    ),
    "parallel_sgd": (
        {"name": "parallel_sgd", "average_every": 2},
        PASSES | {"update", "average", "sums", "gather", "waiting"},
    ),
    "admm": ({"name": "admm"}, PASSES | {"update", "average", "sums", "gather", "waiting"}),
    "consensus": (
        {"name": "admm", "form": "consensus", "steps": 2},
        PASSES | {"update", "consensus", "sums", "gather", "waiting"},
    ),
}


def run(folder: Path, algorithm: dict[str, Any], **fields: Any) -> LocalRun:
    spec = {
        "model": "lenet5", "data": {"name": "digits", "limit": 60}, "batch": 4, "epochs": 1, "seed": 5,
        "workers": {"count": 3}, "optimizer": {"name": "sgd", "lr": 0.05}, "algorithm": algorithm,
    }  # fmt: skip
    return LocalRun(TrainSpec.model_validate(spec | fields), folder)


def events_of(tracer: StepTracer) -> list[dict[str, Any]]:
    found = json.loads(gzip.decompress(tracer.look(0, "job/worker/2").file))
    return list(found["traceEvents"])


@pytest.mark.parametrize("way", WAYS)
def test_parts_of_a_step(way: str, tmp_path: Path) -> None:
    algorithm, parts = WAYS[way]
    plain = read_checkpoint(run(tmp_path / "plain", algorithm).train())
    traced = run(tmp_path / "traced", algorithm)
    traced.tracer.begin(4, uses_gpu=False)
    found = read_checkpoint(traced.train())
    assert all(torch.equal(found.model[name], value) for name, value in plain.model.items())
    events = events_of(traced.tracer)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    (training,) = (tid for tid, name in names.items() if name == "training")
    ours = [e for e in events if e.get("cat") == OURS and e["tid"] == training]
    assert {e["name"] for e in ours} - {"update"} == parts - {"update"}  # on this transport shards update here too
    assert {"update"} & parts <= {e["name"] for e in ours}
    steps = [e for e in ours if e["name"] == "step"]
    assert len(steps) == 4
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(steps))
    for one in ours:
        assert any(s["ts"] - 0.01 <= one["ts"] and _end(one) <= _end(s) + 0.01 for s in steps), one
    inside = [e for e in events if e.get("cat") == "cpu_op" and e["tid"] == training]
    backwards = [e for e in ours if e["name"] == "backward"]
    assert any(b["ts"] <= e["ts"] and _end(e) <= _end(b) for b in backwards for e in inside), "no operators"


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])
