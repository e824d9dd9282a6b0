"""What a coordinator said before it died, and what the next one makes of it."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import ray

from tests.runtime.control.fakes import FakeLog
from tests.runtime.runs import gone_soon, spec
from trainers import ClusterInfo, EventLog, State
from trainers.collectives.endpoints import SharedMemoryEndpoint
from trainers.runtime import nodes
from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.actors.worker import GROUPS, Worker
from trainers.runtime.cluster import NAMESPACE, default_cpus
from trainers.runtime.control.actor_watch import ActorWatch
from trainers.runtime.control.onlookers.usage import UsageLog
from trainers.runtime.control.recovery import find_survivors
from trainers.runtime.control.run_log import GOES_BACK, STARTS_ANEW, LogSummary, summarise_log
from trainers.runtime.messages import WorkerStatus
from trainers.runtime.node_folder import cleanup
from trainers.runtime.nodes import kill_process
from trainers.training.messages import GenerationEnd, GenerationStart


def test_what_the_log_tells_of_the_time_since_the_run_began_again(tmp_path: Path) -> None:
    """It went back from epoch 3 to the checkpoint of epoch 1: only what was logged since is still true."""
    log = EventLog(tmp_path)

    def state(state: State, reason: str) -> None:
        log.append("state", {"state": state, "reason": reason, "message": ""})

    def epoch(number: int) -> None:
        log.append("epoch", {"epoch": number})
        log.append("evaluation", {"epoch": number, "test_accuracy": number / 10})

    log.append("log", {"level": "info", "message": "", "wanted": 5})
    state(State.STARTING, "Starting")
    assert summarise_log(tmp_path).wanted is None  # it was for a run that was paused since, and may have been changed
    log.append("log", {"level": "info", "message": "", "wanted": 3})
    log.append("actors", {})
    epoch(1)
    log.append("checkpoint", {"epoch": 1})
    epoch(2)
    epoch(3)
    state(State.RECOVERING, GOES_BACK[0])
    assert summarise_log(tmp_path).goes_back
    state(State.RECOVERING, STARTS_ANEW)
    log.append("actors", {})
    epoch(2)
    state(State.PAUSING, "Pausing")
    assert summarise_log(tmp_path) == LogSummary(
        False, State.PAUSED, 2, [{"epoch": 2, "test_accuracy": 0.2}], furthest=3, deaths=1, went_back=1, wanted=3
    )
    log.append("checkpoint", {"epoch": 2})
    assert summarise_log(tmp_path).went_back == 0
    state(State.PAUSED, "Paused")
    log.close()
    assert summarise_log(tmp_path).is_over


def test_a_generation_that_a_dead_coordinator_began_is_refused_after_the_next_has_asked(cluster: ClusterInfo) -> None:
    """The message was on its way when its sender died. A worker that took it up would train beside the others, and
    whatever the next coordinator says would wait behind it and begin again what is long done."""
    name = "late/worker/0"
    actor = ray.remote(concurrency_groups=GROUPS)(Worker).options(name=name, namespace=NAMESPACE, num_cpus=0)
    worker = actor.remote(name, "late", spec(), None)
    prepared = ray.get(worker.prepare.options(concurrency_group="control").remote(chooses=False, tries=False))
    status = ray.get(worker.resign.options(concurrency_group="control").remote(1))
    assert status == WorkerStatus(prepared, None, -1, -1)
    begin = GenerationStart(0, SharedMemoryEndpoint(0, 0, 1), incarnation=0)
    ended: GenerationEnd = ray.get(worker.train.options(concurrency_group="train").remote(begin), timeout=60)
    assert (ended.lost, ended.has_version) == ("another coordinator has taken over", False)
    ray.get(worker.cleanup.options(concurrency_group="control").remote())
    ray.kill(worker)
    gone_soon("late", [])


@pytest.mark.long
def test_a_survivor_that_is_stopped_as_soon_as_it_has_answered_is_found_out(cluster: ClusterInfo) -> None:
    """The new coordinator knew nothing of its process yet, and waited for it for ever."""
    name = "survivor/worker/0"
    actor = ray.remote(concurrency_groups=GROUPS)(Worker).options(name=name, namespace=NAMESPACE, num_cpus=0)
    worker = actor.remote(name, "survivor", spec(), None)
    pid = ray.get(worker.prepare.options(concurrency_group="control").remote(chooses=False, tries=False)).place.pid

    async def take_over() -> None:
        watch = ActorWatch(ActorPool("survivor", spec(), None, None), print, UsageLog(FakeLog()))
        found = await find_survivors("survivor", 1, watch)
        assert [one.name for one in found.workers] == [name]
        os.kill(pid, signal.SIGSTOP)
        watching = asyncio.create_task(watch.run())
        with pytest.raises(ray.exceptions.RayActorError):
            await asyncio.wait_for(found.workers[0].ask("heartbeat"), 60)
        watching.cancel()

    try:
        asyncio.run(take_over())
    finally:
        kill_process(pid)
        cleanup("survivor")
    gone_soon("survivor", [])


def test_a_node_that_dies_over_a_question_has_no_answer(monkeypatch: pytest.MonkeyPatch, cluster: ClusterInfo) -> None:
    """Ray does not know at once that a node is dead."""
    gone = "0" * 56
    monkeypatch.setattr(nodes, "nodes_alive", lambda: {gone: None})
    assert nodes.ask_on(gone, default_cpus) is None
