"""`python -m tests.runtime.several_nodes FOLDER`: runs on three raylets of this machine; prints where all actors were.

A process of its own, because a process is connected to one Ray at a time.
"""

import json
import logging
import sys
from pathlib import Path

from ray.cluster_utils import Cluster

import trainers
from benchmarks.measurement.processes import free_port
from tests.runtime.raylets import be_patient
from tests.runtime.runs import finished, spec

NODES = (1, 2, 2)  # logical CPUs
RUNS = {
    "own": {"workers": 2, "ps": {"shards": 3, "location": "own", "cpus": 0.5}},
    "beside": {"workers": 4, "ps": 3},
    "full": {"workers": 5, "ps": {"location": "own"}},
}


def main(folder: Path) -> None:
    logging.disable(logging.WARNING)
    be_patient()
    head = {"num_cpus": NODES[0], "include_dashboard": False, "dashboard_port": free_port()}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for cpus in NODES[1:]:
            cluster.add_node(num_cpus=cpus)
        trainers.attach(cluster.address)
        for job, fields in RUNS.items():
            run = finished(job, spec(algorithm="downpour", epochs=1, **fields), folder / job)
            actors = run.of("actors")[0] if run.of("actors") else {"workers": [], "shards": []}
            places = {kind: [actor["node_id"] for actor in actors[kind]] for kind in ("workers", "shards")}
            print(json.dumps({"job": job, **run.events[-1].data, **places}), flush=True)
    finally:
        trainers.detach()
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
