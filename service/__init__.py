"""Many runs: jobs, queue and admission, the durable store, recovery. What stands here is what `api` may use.

Names are looked up when they are first used, so that a command line that only prints help imports no database.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.addresses import certificates, networks
    from service.catalogue import Algorithm, Dataset, Model, algorithms, datasets, job_schema, models
    from service.checkpoints import CheckpointFile, CheckpointView, chunks
    from service.doctor import Finding, Health
    from service.errors import (
        CheckpointNotFound,
        CopyDamaged,
        DatabaseRefused,
        JobNotFound,
        KeyReused,
        NeverFits,
        SeriesNotFound,
        ServiceError,
        SpecInvalid,
        StateConflict,
        StorageFull,
        StorageRefused,
        StorageUnreachable,
        SweepNotFound,
        TokenRefused,
        TooManyWaiting,
        WebhookNotFound,
        WebhookRefused,
    )
    from service.fork import as_patch
    from service.jobs import JobManager
    from service.local import LocalRun
    from service.metrics import ServiceMetrics
    from service.permission import own_code, own_code_of_sweep
    from service.progress import Progress, log_line
    from service.runs import RunHandle, Runs
    from service.scaling.figures import figures
    from service.scaling.markdown import markdown
    from service.scaling.report import ScalingReport, scaling_report
    from service.sender import Sender
    from service.series import AXES, NAMES, Line
    from service.signature import verify
    from service.spec import JobSpec, load_yaml, parse_spec, read_spec, read_spec_file
    from service.storage.mirror import Mirror
    from service.storage.storage import Storage
    from service.store import Query, Store, new_job_id
    from service.sweeps.axes import configurations, trial_needs
    from service.sweeps.control import check_fits
    from service.sweeps.ledger import Ledger
    from service.sweeps.local import LocalSweep, new_sweep_id, sweep
    from service.sweeps.manager import SweepManager
    from service.sweeps.spec import SweepSpec, parse_sweep, read_sweep_file
    from service.sweeps.view import SweepSummary, SweepView, TrialView, evidence
    from service.tokens import LOCAL, Identity, Role, Token, Tokens
    from service.tracking import Tracking
    from service.views import JobSummary, JobView, Page
    from service.waiting import Rules
    from service.webhooks import Delivery, Webhook, Webhooks
    from trainers import (
        ClusterInfo,
        Event,
        Exported,
        FieldError,
        Images,
        Metrics,
        MillraceError,
        ModelCost,
        Recipe,
        Resources,
        Result,
        Share,
        SpecRejected,
        State,
        TimingPlan,
        Timings,
        attach,
        detach,
        embedded,
        explain,
        export_model,
        images_of,
        known_examples,
        plot_timings,
        profile_model,
        slope_words,
        start_head,
        stop_head,
        time_layers,
    )

_HOME = {
    "service.addresses": ("certificates", "networks"),
    "service.catalogue": ("Algorithm", "Dataset", "Model", "algorithms", "datasets", "job_schema", "models"),
    "service.checkpoints": ("CheckpointFile", "CheckpointView", "chunks"),
    "service.doctor": ("Finding", "Health"),
    "service.errors": (
        "CheckpointNotFound", "CopyDamaged", "DatabaseRefused", "JobNotFound", "KeyReused", "NeverFits",
        "SeriesNotFound", "ServiceError", "SpecInvalid", "StateConflict", "StorageFull", "StorageRefused",
        "StorageUnreachable", "SweepNotFound", "TokenRefused", "TooManyWaiting", "WebhookNotFound", "WebhookRefused",
    ),
    "service.fork": ("as_patch",),
    "service.jobs": ("JobManager",),
    "service.local": ("LocalRun",),
    "service.metrics": ("ServiceMetrics",),
    "service.permission": ("own_code", "own_code_of_sweep"),
    "service.progress": ("Progress", "log_line"),
    "service.runs": ("RunHandle", "Runs"),
    "service.scaling.figures": ("figures",),
    "service.scaling.markdown": ("markdown",),
    "service.scaling.report": ("ScalingReport", "scaling_report"),
    "service.sender": ("Sender",),
    "service.series": ("AXES", "NAMES", "Line"),
    "service.signature": ("verify",),
    "service.spec": ("JobSpec", "load_yaml", "parse_spec", "read_spec", "read_spec_file"),
    "service.storage.mirror": ("Mirror",),
    "service.storage.storage": ("Storage",),
    "service.store": ("Query", "Store", "new_job_id"),
    "service.sweeps.axes": ("configurations", "trial_needs"),
    "service.sweeps.control": ("check_fits",),
    "service.sweeps.ledger": ("Ledger",),
    "service.sweeps.local": ("LocalSweep", "new_sweep_id", "sweep"),
    "service.sweeps.manager": ("SweepManager",),
    "service.sweeps.spec": ("SweepSpec", "parse_sweep", "read_sweep_file"),
    "service.sweeps.view": ("SweepSummary", "SweepView", "TrialView", "evidence"),
    "service.tokens": ("LOCAL", "Identity", "Role", "Token", "Tokens"),
    "service.tracking": ("Tracking",),
    "service.views": ("JobSummary", "JobView", "Page"),
    "service.waiting": ("Rules",),
    "service.webhooks": ("Delivery", "Webhook", "Webhooks"),
    "trainers": (
        "ClusterInfo", "Event", "Exported", "FieldError", "Images", "Metrics", "MillraceError", "ModelCost", "Recipe",
        "Resources", "Result", "Share", "SpecRejected", "State", "TimingPlan", "Timings", "attach", "detach",
        "embedded", "explain", "export_model", "images_of", "known_examples", "plot_timings", "profile_model",
        "slope_words", "start_head", "stop_head", "time_layers",
    ),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AXES", "LOCAL", "NAMES", "Algorithm", "CheckpointFile", "CheckpointNotFound", "CheckpointView", "ClusterInfo",
    "CopyDamaged", "DatabaseRefused", "Dataset", "Delivery", "Event", "Exported", "FieldError", "Finding", "Health",
    "Identity", "Images", "JobManager", "JobNotFound", "JobSpec", "JobSummary", "JobView", "KeyReused", "Ledger",
    "Line", "LocalRun", "LocalSweep", "Metrics", "MillraceError", "Mirror", "Model", "ModelCost", "NeverFits", "Page",
    "Progress", "Query", "Recipe", "Resources", "Result", "Role", "Rules", "RunHandle", "Runs", "ScalingReport",
    "Sender", "SeriesNotFound", "ServiceError", "ServiceMetrics", "Share", "SpecInvalid", "SpecRejected", "State",
    "StateConflict", "Storage", "StorageFull", "StorageRefused", "StorageUnreachable", "Store", "SweepManager",
    "SweepNotFound", "SweepSpec", "SweepSummary", "SweepView", "TimingPlan", "Timings", "Token", "TokenRefused",
    "Tokens", "TooManyWaiting", "Tracking", "TrialView", "Webhook", "WebhookNotFound", "WebhookRefused", "Webhooks",
    "algorithms", "as_patch", "attach", "certificates", "check_fits", "chunks", "configurations", "datasets", "detach",
    "embedded", "evidence", "explain", "export_model", "figures", "images_of", "job_schema", "known_examples",
    "load_yaml", "log_line", "markdown", "models", "networks", "new_job_id", "new_sweep_id", "own_code",
    "own_code_of_sweep", "parse_spec", "parse_sweep", "plot_timings", "profile_model", "read_spec", "read_spec_file",
    "read_sweep_file", "scaling_report", "slope_words", "start_head", "stop_head", "sweep", "time_layers",
    "trial_needs", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
