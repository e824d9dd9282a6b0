"""`python -m tests.faults.soak [SECONDS [EVERY_S [SEED]]]`: a synchronous run on several raylets, and a fault at random
again and again: a worker killed, stopped, broken, its node gone, the coordinator killed.

Ends well when the run has succeeded, every example of every epoch was trained once, and the parameters have the bits of
an undisturbed run. Prints one JSON object. A process of its own, because a process is connected to one Ray at a time.
"""

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
import torch
from ray.cluster_utils import Cluster

import trainers
from benchmarks.measurement.processes import free_port
from tests.faults.test_workers import EXAMPLES, hurry, strike
from tests.runtime.raylets import spec
from tests.runtime.runs import Watched, left_behind, soon, start
from trainers.models.weights import load_weights

WORKERS = 4
STEP_S = 0.09
"""About what a step takes with the pause below: two of five virtual workers one after the other, and the exchange."""
PAUSE_S = 0.03
SILENCE_S = 300.0
"""A run that has said nothing for so long is stuck: on two cores with a load of 25, 21 s were the longest."""
WINDOW_S = 4.0
"""Shorter than the time between two faults."""


class Soak:
    """One run on a cluster, and what was done to it."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self.folder, self.plan = folder, folder / "plan"
        self.draw = random.Random(seed)
        os.environ["RAY_AUTH_MODE"] = "disabled"  # else nodes that come later ask the others for a token, in vain
        head = {"num_cpus": 1, "include_dashboard": False, "dashboard_port": free_port()}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.cluster.add_node(num_cpus=3), self.cluster.add_node(num_cpus=3)]
        trainers.attach(self.cluster.address)
        epochs = max(4, int(seconds / STEP_S / 6))
        fields: dict[str, Any] = {"workers": {"count": WORKERS, "virtual": 5}, "epochs": epochs}
        fields["checkpoint"] = {"every_epochs": 5}  # where a node comes late, a fault may strike the last worker
        self.train = spec(self.plan, pause_s=PAUSE_S, **fields)
        del self.train.model.kwargs["slow_after"]  # it has a goodput
        self.clean = spec(folder / "none", pause_s=0.0, **fields)
        self.done: list[str] = []

    def strike(self, watched: Watched) -> None:
        """One fault, whichever it is."""
        faults: list[Callable[[Watched], None]] = [self._kill, self._stop, self._raise, self._headless, self._node_gone]
        fault = self.draw.choice(faults)
        self.done.append(fault.__name__.strip("_"))
        print(f"fault {len(self.done)}: {self.done[-1]}", file=sys.stderr, flush=True)
        fault(watched)

    def _kill(self, _: Watched) -> None:
        strike(self.plan, "kill")

    def _stop(self, _: Watched) -> None:
        strike(self.plan, "stop")

    def _raise(self, _: Watched) -> None:
        strike(self.plan, "raise")

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


def soak(folder: Path, seconds: float, every_s: float, seed: int) -> dict[str, Any]:
    """What happened, and whether it came out well."""
    it = Soak(folder, seconds, seed)
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
            "state": watched.events[-1].data["state"],
            "message": watched.events[-1].data["message"],
            "faults": it.done,
            "causes": [fault["why"] for fault in watched.of("fault")],
            "errors": [line["message"] for line in watched.of("log") if line["level"] == "error"],
            "audited": all(whole(audit) for audit in watched.of("epoch_audit")),
            "epochs": [len(watched.of("epoch_audit")), it.train.epochs],
            "gap_free": [event.seq for event in watched.events] == list(range(1, len(watched.events) + 1)),
            "equal": watched.events[-1].data["state"] == "SUCCEEDED" and same(folder / "clean", folder / "run"),
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


def same(clean: Path, run: Path) -> bool:
    """Whether two runs have the same bits."""
    found, wanted = load_weights(run / "model.safetensors"), load_weights(clean / "model.safetensors")
    return all(torch.equal(found[name], value) for name, value in wanted.items())


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


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    numbers = [float(argument) for argument in sys.argv[1:]]
    seconds, every_s, seed = (*numbers, *(600.0, 20.0, 0.0)[len(numbers) :])
    with tempfile.TemporaryDirectory(prefix="millrace-soak-") as folder:
        found = soak(Path(folder), seconds, every_s, int(seed))
    print(json.dumps(found))
    sys.exit(not (found["state"] == "SUCCEEDED" and found["audited"] and found["equal"]))
