"""What a coordinator said before it died, and a worker hears only after the next one has asked."""

import ray

from tests.runtime.runs import gone_soon, spec
from trainers import ClusterInfo
from trainers.runtime.cluster import NAMESPACE
from trainers.runtime.messages import Begin, Ended, Exchange, Resigned
from trainers.runtime.worker import GROUPS, Worker


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
