"""What a run is made of: built once, and handed to those that need it."""

import asyncio
from dataclasses import dataclass
from typing import Any

from trainers.runtime.actor_pool import ActorPool
from trainers.runtime.control.actor_watch import ActorWatch
from trainers.runtime.control.config import RunConfig
from trainers.runtime.control.onlookers.callbacks import CallbackCalls
from trainers.runtime.control.onlookers.predictions import Predictions
from trainers.runtime.control.onlookers.tracing import Tracing
from trainers.runtime.control.onlookers.usage import UsageLog
from trainers.runtime.control.run_events import EventQueue, StopsEarly, Tasks
from trainers.runtime.control.run_log import RunLog
from trainers.runtime.control.shard_group import ShardGroup
from trainers.runtime.control.snapshot_schedule import SnapshotSchedule
from trainers.runtime.control.snapshots import Snapshots
from trainers.runtime.control.standbys import Standbys
from trainers.runtime.ray_metrics import RayMetrics
from trainers.runtime.topology import Topology


@dataclass(frozen=True)
class RunParts:
    """The collaborators of one run."""

    config: RunConfig
    events: EventQueue
    tasks: Tasks
    log: RunLog
    pool: ActorPool
    watch: ActorWatch
    topology: Topology
    standbys: Standbys
    shards: ShardGroup
    snapshots: Snapshots
    callbacks: CallbackCalls
    schedule: SnapshotSchedule
    tracing: Tracing
    predictions: Predictions


def build_parts(config: RunConfig, coordinator: Any, node_ip: str) -> RunParts:
    """Make them.

    Args:
        coordinator: The handle of the actor that workers and shards call.
        node_ip: The address of its node.
    """
    log = RunLog(config.run_dir, RayMetrics(config.spec))
    pool = ActorPool(config.job_id, config.spec, config.runtime_env, coordinator, config.warm_pool)
    return assemble(config, log, pool, Topology(config.spec, node_ip))


def assemble(config: RunConfig, log: RunLog, pool: ActorPool, topology: Topology) -> RunParts:
    """Make the rest of them from a log and a pool, which a test may fake."""
    events: EventQueue = asyncio.Queue()
    standbys = Standbys(pool, log)
    shards = ShardGroup(pool, standbys, log, events)
    snapshots = Snapshots(pool, config.spec, config.run_dir, log, lambda why: events.put_nowait(StopsEarly(why)))
    schedule = SnapshotSchedule(pool, shards, snapshots)
    callbacks, watch = CallbackCalls(pool, log, events), ActorWatch(pool, log.printed, UsageLog(log))
    tasks = Tasks(events)
    tracing = Tracing(config.run_dir, pool, log, tasks)
    return RunParts(
        config, events, tasks, log, pool, watch, topology, standbys, shards, snapshots, callbacks, schedule, tracing,
        Predictions(config, log),
    )  # fmt: skip
