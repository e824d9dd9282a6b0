"""What a coordinator said before it died, and what the next one makes of it."""

from pathlib import Path

import ray

from tests.runtime.runs import gone_soon, spec
from trainers import ClusterInfo, Journal, State
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.messages import Begin, Ended, Exchange, Resigned
from trainers.runtime.takeover import GOES_BACK, TAKES_OVER, Past, past
from trainers.runtime.worker import GROUPS, Worker


def test_what_the_log_tells_of_the_time_since_the_run_began_again(tmp_path: Path) -> None:
    """It went back from epoch 3 to the checkpoint of epoch 1: only what was told since is still true."""
    journal = Journal(tmp_path)

    def state(state: State, reason: str) -> None:
        journal.append("state", {"state": state, "reason": reason, "message": ""})

    def epoch(number: int) -> None:
        journal.append("epoch", {"epoch": number})
        journal.append("evaluation", {"epoch": number, "test_accuracy": number / 10})

    journal.append("actors", {})
    epoch(1)
    journal.append("checkpoint", {"epoch": 1})
    epoch(2)
    epoch(3)
    state(State.RECOVERING, GOES_BACK)
    state(State.RECOVERING, TAKES_OVER)
    journal.append("actors", {})
    epoch(2)
    state(State.PAUSING, "Pausing")
    assert past(tmp_path) == Past(False, State.PAUSED, 2, [(2, 0.2)], deaths=1, went_back=1)
    journal.append("checkpoint", {"epoch": 2})
    assert past(tmp_path).went_back == 0
    state(State.PAUSED, "Paused")
    journal.close()
    assert past(tmp_path).is_over


def test_a_generation_that_a_dead_coordinator_began_is_refused_after_the_next_has_asked(cluster: ClusterInfo) -> None:
    """The message was on its way when its sender died. A worker that took it up would train beside the others, and
    whatever the next coordinator says would wait behind it and begin again what is long done."""
    name = "late/worker/0"
    actor = ray.remote(concurrency_groups=GROUPS)(Worker).options(name=name, namespace=NAMESPACE, num_cpus=0)
    worker = actor.remote(name, "late", spec(), None)
    prepared = ray.get(worker.prepare.options(concurrency_group="control").remote(False))
    told = ray.get(worker.resign.options(concurrency_group="control").remote(1))
    assert told == Resigned(prepared, None, -1, -1)
    begin = Begin(0, Exchange("shared_memory", "g0", 0, 1), term=0)
    ended: Ended = ray.get(worker.train.options(concurrency_group="train").remote(begin), timeout=20)
    assert (ended.lost, ended.has_version) == ("another coordinator has taken over", False)
    ray.get(worker.sweep.options(concurrency_group="control").remote())
    ray.kill(worker)
    gone_soon("late", [])
