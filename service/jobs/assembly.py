"""Puts a manager of jobs together from its parts."""

from collections.abc import Sequence

from service.database.job_store import Store
from service.jobs.active_jobs import ActiveJobs
from service.jobs.lifecycle import Lifecycle, Sinks
from service.jobs.manager import JobManager, ManagerConfig, Parts
from service.jobs.metric_series import SeriesCache
from service.jobs.queueing.preemption import Preemption
from service.jobs.queueing.queue import JobQueue
from service.jobs.recovery import Recovery, Watchdog
from service.jobs.removal import Removal
from service.jobs.runs import Runs
from service.jobs.service_metrics import ServiceMetrics
from service.jobs.starting.admission import Admission
from service.jobs.starting.launcher import Launcher
from service.jobs.trials import TrialJobs
from service.projects.projects import Projects
from service.storage.mirror import Mirror
from service.storage.run_dirs import RunDirs
from service.tracking.tracker import Tracking


def build_manager(
    store: Store, runs: Runs, config: ManagerConfig, mirror: Mirror | None = None, trackers: Sequence[Tracking] = ()
) -> JobManager:
    """A manager that has not started.

    Args:
        store: The jobs.
        runs: Starts runs and finds them again.
        config: Where the jobs are kept, and what their users may have.
        mirror: Keeps copies of the runs, if there is a storage.
        trackers: Each mirrors the jobs in MLflow or the like.
    """
    active = ActiveJobs()
    queue = JobQueue(runs, active, Projects(store.engine, store.writer), config.quotas, config.growth)
    sinks = Sinks(RunDirs(store, mirror), SeriesCache(), trackers)
    lifecycle = Lifecycle(store, runs, active, queue, sinks, config.poll_s)
    metrics = ServiceMetrics(store.count, active.progress, mirror)
    preemption = Preemption(queue.held, active.scale)
    admission, recovery = Admission(queue, preemption, lifecycle, Launcher(lifecycle, metrics)), Recovery(lifecycle)
    parts = Parts(
        lifecycle=lifecycle,
        preemption=preemption,
        admission=admission,
        recovery=recovery,
        watchdog=Watchdog(lifecycle, recovery, admission.launches),
        trials=TrialJobs(lifecycle),
        removal=Removal(store, sinks.series, mirror, config.runs_dir, config.quotas.keep_s),
        metrics=metrics,
        mirror=mirror,
    )
    return JobManager(config, parts)
