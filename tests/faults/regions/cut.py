"""`python -m tests.faults.regions.cut FOLDER SECONDS`: a run on two nodes with a link between, of which one node is
taken off the network for a while. Prints what happened, as JSON.

A process of its own, because one that has entered a network namespace stays there.
"""

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.links.namespaces import cut, mend, nodes
from tests.faults import test_workers
from tests.faults.test_workers import has_trained, hurry
from tests.runtime.raylets import spec
from tests.runtime.runs import start

GROUPS = {"name": "mixed", "push": "delta", "steps": 5, "outer": "average", "apart_s": 300}
EXAMPLES, EPOCHS = 1400, 6
"""200 minibatches an epoch, of which a group is leased 50 at a time: 25 steps."""
PAUSE_S = 0.2
"""Of each minibatch: a lease takes 5 s."""


def cut_off(folder: Path, seconds: float) -> dict[str, Any]:
    """The node without coordinator and shard is away for so long."""
    with nodes(1000.0, count=2, cpus=2) as names:
        fields: dict[str, Any] = {"algorithm": GROUPS, "workers": 4, "ps": {"shards": 1, "replicas": 1}}
        fields |= {"data": test_workers.DATA | {"limit": EXAMPLES}, "epochs": EPOCHS, "ema": None, "clip": None}
        plan = folder / "plan"
        watched = start("cut", spec(plan, PAUSE_S, **fields), folder / "run")
        has_trained(watched, 700)
        before = sum(step["apart_steps"] for step in watched.of("step"))
        seen = len(watched.events)
        cut(names[1])
        time.sleep(seconds)
        mend(names[1])
        watched.until(lambda e: "and is back" in e.data.get("message", ""))
        meanwhile = [event for event in watched.events[seen:] if event.type == "step"]
        hurry(plan)
        end = watched.end()
        last = {audit["epoch"]: audit for audit in watched.of("epoch_audit")}
        return {
            "end": end.data,
            "faults": watched.of("fault"),
            "resizes": watched.of("resize"),
            "audits": [[audit[name] for name in ("trained", "lost", "duplicated")] for audit in last.values()],
            "apart_steps": [before, sum(step["apart_steps"] for step in watched.of("step"))],
            "trained_meanwhile": meanwhile[-1].data["examples"] - meanwhile[0].data["examples"],
            "result": watched.of("result")[0],
            "told": [line["message"] for line in watched.of("log")],
        }


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(cut_off(Path(sys.argv[1]), float(sys.argv[2]))))
