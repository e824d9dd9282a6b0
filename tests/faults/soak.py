"""`python -m tests.faults.soak`: a run on several raylets, and a fault at random again and again: a worker killed,
stopped, broken, its node gone, the coordinator killed, a shard killed.

Ends well when the run has succeeded, every example of every epoch was trained once, and the parameters have the bits of
an undisturbed run, where the algorithm promises that. Prints one JSON object. A process of its own, because a process
is connected to one Ray at a time.
"""

import argparse
import json
import logging
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.cluster_utils import Cluster

import trainers
from benchmarks.measurement.processes import free_port
from tests.faults.test_workers import DATA, EXAMPLES, hurry, strike
from tests.runtime.raylets import STATISTICS, be_patient, same_bits, spec
from tests.runtime.runs import Watched, left_behind, soon, start
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.nodes import process_of
from trainers.spec import TrainSpec

WORKERS = 4
STEP_S = 0.09
"""About what a step takes with the pause below: two of five virtual workers one after the other, and the exchange."""
PAUSE_S = 0.03
SILENCE_S = 300.0
"""A run that has said nothing for so long is stuck: on two cores with a load of 25, 21 s were the longest."""
WINDOW_S = 4.0
"""Shorter than the time between two faults."""

APART = {"workers": {"count": WORKERS}, "clip": None, "ema": None}
"""Of runs whose workers update parameters by themselves."""
ALGORITHMS: dict[str, dict[str, Any]] = {
    "sync": {},
    "sync through shards": {"algorithm": {"name": "sync", "form": "parameter_server"}},
    "downpour": {"algorithm": "downpour", **APART},
    "downpour of deltas": {"algorithm": {"name": "downpour", "push": "delta"}, "optimizer": "adamw", **APART},
    "easgd": {"algorithm": {"name": "easgd", "tau": 4}, "optimizer": {"name": "sgd", "lr": 0.02}, **APART},
    "mixed": {"algorithm": {"name": "mixed", "group": 2}, **APART},
    "parallel_sgd": {"algorithm": {"name": "parallel_sgd", "average_every": 4}},
    "diloco": {"algorithm": {"name": "diloco", "average_every": 4}, "optimizer": "adamw", "ema": None},
    "admm": {"algorithm": "admm", "clip": None, "ema": None},
    "hybrid": {"algorithm": "hybrid", "data": DATA, "clip": {"norm": 0.5}},
    "spatial": {
        "algorithm": "spatial",
        "data": DATA,
        "clip": {"norm": 0.5},
        "workers": {"count": WORKERS, "virtual": 5, "max": WORKERS},  # 8 rows are enough for four
    },
}
"""Their fields of the spec."""
TRACED = ("hybrid", "spatial")
"""These trace the model, and what it would look for at each minibatch: their workers are struck from outside."""
SAME_BITS = ("sync", "sync through shards", "diloco")
"""These have the bits of an undisturbed run, whatever happens."""


class Soak:
    """One run on a cluster, and what was done to it."""

    def __init__(self, folder: Path, seconds: float, seed: int, algorithm: str) -> None:
        self.folder, self.plan = folder, folder / "plan"
        self.draw = random.Random(seed)
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else nodes that come later ask the others for a token, in vain
        be_patient()
        head = {"num_cpus": 1, "include_dashboard": False, "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=3), self.cluster.add_node(num_cpus=3)]
        trainers.attach(self.cluster.address)
        epochs = max(4, int(seconds / STEP_S / 6))
        fields: dict[str, Any] = {"workers": {"count": WORKERS, "virtual": 5}, "epochs": epochs}
        fields["checkpoint"] = {"every_epochs": 5}  # where a node comes late, a fault may strike the last worker
        fields |= ALGORITHMS[algorithm]
        self.train = spec(self.plan, pause_s=PAUSE_S, **fields)
        del self.train.model.kwargs["slow_after"]  # it has a goodput
        self.clean = spec(folder / "none", pause_s=0.0, **fields)
        if algorithm == "spatial":
            self.train, self.clean = in_rows(self.train), in_rows(self.clean)
        self.strikes_from_outside = algorithm in TRACED
        self.done: list[str] = []

    def strike(self, watched: Watched) -> None:
        """One fault, whichever it is."""
        faults: list[Callable[[Watched], None]] = [self._kill, self._stop, self._raise, self._headless, self._node_gone]
        if self.train.algorithm.traits.uses_parameter_server:
            faults.append(self._shard)
        fault = self.draw.choice(faults)
        self.done.append(fault.__name__.strip("_"))
        print(f"fault {len(self.done)}: {self.done[-1]}", file=sys.stderr, flush=True)
        fault(watched)

    def _kill(self, watched: Watched) -> None:
        self._strike_a_worker(watched, "kill", signal.SIGKILL)

    def _stop(self, watched: Watched) -> None:
        self._strike_a_worker(watched, "stop", signal.SIGSTOP)

    def _raise(self, watched: Watched) -> None:
        self._strike_a_worker(watched, "raise", signal.SIGTERM)

    def _strike_a_worker(self, watched: Watched, what: str, instead: signal.Signals) -> None:
        """At its next minibatch, or by a signal where nobody looks at each."""
        if self.strikes_from_outside:
            self._signal(watched, instead)
        else:
            strike(self.plan, what)

    def _shard(self, watched: Watched) -> None:
        self._signal(watched, signal.SIGKILL, ("shard", "standby"))  # a standby may have become the shard

    def _signal(self, watched: Watched, what: signal.Signals, kinds: tuple[str, ...] = ("worker",)) -> None:
        """To an actor of one of these kinds that Ray knows to live, unless the run ends before there is any."""
        pids: list[int] = []

        def is_there() -> bool:
            known = [entry["name"] for entry in ray.util.list_named_actors(all_namespaces=True)]
            named = sorted(name for name in known if any(f"/{kind}/" in name for kind in kinds))
            with suppress(ValueError):  # the last one has ended meanwhile
                found = process_of(ray.get_actor(self.draw.choice(named), NAMESPACE)) if named else None
                pids.extend(() if found is None else found[1:])
            return bool(pids) or follow(watched)

        soon(is_there, SILENCE_S)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, what)

    def _headless(self, watched: Watched) -> None:
        pids: list[int] = []

        def is_there() -> bool:  # the one that was killed before may not have come back yet
            with suppress(ray.exceptions.ActorUnavailableError):
                pids.append(ray.get(watched.run.coordinator.process.remote()))
            return bool(pids)

        soon(is_there, SILENCE_S)
        os.kill(pids[0], signal.SIGKILL)

    def _node_gone(self, _: Watched) -> None:
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)
        self.nodes.append(self.cluster.add_node(num_cpus=3))


def in_rows(train: TrainSpec) -> TrainSpec:
    """The same of a model whose rows can be divided."""
    kwargs = {name: train.model.kwargs[name] for name in ("plan", "pause_s")}
    model = train.model.model_copy(update={"name": "tests.faults.code.faulty:in_rows", "kwargs": kwargs})
    return train.model_copy(update={"model": model})


def soak(folder: Path, seconds: float, every_s: float, seed: int, algorithm: str) -> dict[str, Any]:
    """What happened, and whether it came out well."""
    it = Soak(folder, seconds, seed, algorithm)
    try:
        clean = start("soak-clean", it.clean, folder / "clean")
        clean.until(lambda event: event.type == "state")
        while not follow(clean):
            time.sleep(0.05)
        assert clean.events[-1].data["state"] == "SUCCEEDED", clean.events[-3:]
        print(f"an undisturbed run of {it.train.epochs} epochs is done", file=sys.stderr, flush=True)
        watched = start("soak", it.train, folder / "run")
        watched.until(lambda event: event.type == "step", SILENCE_S)
        began = struck_s = time.monotonic()
        calm = None
        while not follow(watched):
            if calm is None and time.monotonic() - struck_s > every_s:
                if time.monotonic() - began < seconds:
                    struck_s = time.monotonic()
                    it.strike(watched)
                else:
                    calm = time.time()
                    hurry(it.plan)
            time.sleep(0.05)
        return {
            "algorithm": algorithm,
            "state": watched.events[-1].data["state"],
            "message": watched.events[-1].data["message"],
            "faults": it.done,
            "causes": [fault["why"] for fault in watched.of("fault")],
            "errors": [line["message"] for line in watched.of("log") if line["level"] == "error"],
            "audited": all(whole(audit) for audit in watched.of("epoch_audit")),
            "epochs": [len(watched.of("epoch_audit")), it.train.epochs],
            "gap_free": [event.seq for event in watched.events] == list(range(1, len(watched.events) + 1)),
            "equal": watched.events[-1].data["state"] == "SUCCEEDED"
            # With shards, the statistics of batch norm are the workers' own, and a node's are lost with it.
            and same_bits(folder / "run", folder / "clean", but=STATISTICS if "shards" in algorithm else ()),
            "goodput": goodput(watched, calm),
            "silence_s": max(after.time - before.time for before, after in pairwise(watched.events)),
            "left": left_after("soak", 10.0),
        }
    finally:
        trainers.detach()
        it.cluster.shutdown()


def follow(watched: Watched) -> bool:
    """Read what there is; whether it is the end. A run may take as long as the machine needs, if it makes progress."""
    reader = trainers.EventLogReader(watched.folder, watched.events[-1].seq)
    watched.events += reader.read()
    assert time.time() - watched.events[-1].time < SILENCE_S, watched.events[-5:]
    return watched.events[-1].is_terminal


def left_after(job_id: str, seconds: float) -> list[str]:
    """What is still there of a run so long after its end."""
    deadline = time.monotonic() + seconds
    while (found := left_behind(job_id)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def whole(audit: dict[str, int]) -> bool:
    """Whether every example of an epoch was trained once."""
    return (audit["trained"], audit["lost"], audit["duplicated"]) == (EXAMPLES, 0, 0)


def goodput(watched: Watched, calm: float | None) -> float:
    """Steps a second to those of the median window, which nothing disturbed: the share of the worker seconds that was
    useful, until no more faults came, if the run lasted so long. Steps that workers made while there was no coordinator
    count when they are reported."""
    end = math.inf if calm is None else calm
    steps = [(event.time, event.data["step"]) for event in watched.events if event.type == "step" and event.time < end]
    (begun, first), (ended, last) = steps[0], steps[-1]
    made = Counter[int]()
    for (_, before), (reported, after) in pairwise(steps):
        made[int((reported - begun) / WINDOW_S)] += after - before
    usual = median(made[window] for window in range(int((ended - begun) / WINDOW_S)))
    return float((last - first) / (ended - begun) / (usual / WINDOW_S)) if usual else 0.0  # hardly any undisturbed time


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long faults come")
    parser.add_argument("--every", type=float, default=20.0, metavar="SECONDS", help="from one to the next")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="sync")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="millrace-soak-") as folder:
        found = soak(Path(folder), options.seconds, options.every, options.seed, options.algorithm)
    print(json.dumps(found))
    is_equal = found["equal"] or options.algorithm not in SAME_BITS
    return int(not (found["state"] == "SUCCEEDED" and found["audited"] and is_equal and not found["left"]))


if __name__ == "__main__":
    sys.exit(main())
