"""Many runs: jobs, queue and admission, the durable store, recovery. What stands here is what `api` may use.

Names are looked up when they are first used, so that a command line that only prints help imports no database.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.catalogue import Algorithm, algorithms, job_schema
    from service.errors import JobNotFound, KeyReused, NeverFits, ServiceError, SpecInvalid, StateConflict
    from service.jobs import JobManager, JobSummary, JobView, Page
    from service.local import LocalRun
    from service.progress import Progress, log_line
    from service.runs import RunHandle, Runs
    from service.spec import JobSpec, load_yaml, parse_spec, read_spec, read_spec_file
    from service.store import Query, Store, new_job_id
    from trainers import (
        ClusterInfo,
        Event,
        FieldError,
        Metrics,
        MillraceError,
        Recipe,
        Resources,
        Result,
        State,
        attach,
        detach,
        embedded,
        explain,
        known_examples,
        start_head,
        stop_head,
    )

_HOME = {
    "service.catalogue": ("Algorithm", "algorithms", "job_schema"),
    "service.errors": ("JobNotFound", "KeyReused", "NeverFits", "ServiceError", "SpecInvalid", "StateConflict"),
    "service.jobs": ("JobManager", "JobSummary", "JobView", "Page"),
    "service.local": ("LocalRun",),
    "service.progress": ("Progress", "log_line"),
    "service.runs": ("RunHandle", "Runs"),
    "service.spec": ("JobSpec", "load_yaml", "parse_spec", "read_spec", "read_spec_file"),
    "service.store": ("Query", "Store", "new_job_id"),
    "trainers": (
        "ClusterInfo", "Event", "FieldError", "Metrics", "MillraceError", "Recipe", "Resources", "Result", "State",
        "attach", "detach", "embedded", "explain", "known_examples", "start_head", "stop_head",
    ),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Algorithm", "ClusterInfo", "Event", "FieldError", "JobManager", "JobNotFound", "JobSpec", "JobSummary", "JobView",
    "KeyReused", "LocalRun", "Metrics", "MillraceError", "NeverFits", "Page", "Progress", "Query", "Recipe",
    "Resources", "Result", "RunHandle", "Runs", "ServiceError", "SpecInvalid", "State", "StateConflict", "Store",
    "algorithms", "attach", "detach", "embedded", "explain", "job_schema", "known_examples", "load_yaml", "log_line",
    "new_job_id", "parse_spec", "read_spec", "read_spec_file", "start_head", "stop_head",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
