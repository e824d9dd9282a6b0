"""Many runs: jobs, queue and admission, the durable store, recovery. What stands here is what `api` may use.

Names are looked up when they are first used, so that a command line that only prints help imports no database.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.catalogue import Algorithm, Dataset, Model, algorithms, datasets, job_schema, models
    from service.claims.claim import Claim, all_claims, claim_of
    from service.claims.page import claim_page
    from service.claims.picture import claim_picture
    from service.claims.verdict import ClaimReport, claim_report
    from service.database.audit import Act, Audit, AuditEntry, AuditQuery
    from service.database.identity import LOCAL, Identity, Requester, Role
    from service.database.job_store import Query, Store
    from service.database.tokens import Token, Tokens
    from service.doctor import Finding, Health, Installation, examine
    from service.errors import (
        CheckpointNotFound,
        CopyDamaged,
        DatabaseRefused,
        DrawingFailed,
        FigureNotFound,
        JobNotFound,
        KeyReused,
        ModelNotFound,
        NeverFits,
        SeriesNotFound,
        ServiceError,
        SpecInvalid,
        SpecUnreadable,
        StateConflict,
        StorageFull,
        StorageRefused,
        StorageUnreachable,
        SweepNotFound,
        TokenRefused,
        TooManyInFlight,
        TooManyWaiting,
        TraceNotFound,
        WebhookNotFound,
        WebhookRefused,
    )
    from service.ids import new_job_id
    from service.job_summary import JobSummary
    from service.jobs.assembly import build_manager
    from service.jobs.fork import as_patch
    from service.jobs.local import LocalRun
    from service.jobs.manager import JobManager, ManagerConfig
    from service.jobs.metric_series import AXES, NAMES, Line
    from service.jobs.own_code import own_code
    from service.jobs.progress import LogFilter, Progress, log_line
    from service.jobs.queueing.claims import Quotas
    from service.jobs.queueing.growth import Growth
    from service.jobs.runs import RunHandle, Runs
    from service.jobs.service_metrics import ServiceMetrics
    from service.jobs.views import JobView, Page
    from service.plain_yaml import MAX_VALUES, compose_yaml, load_yaml
    from service.scaling.figures import figures
    from service.scaling.markdown import markdown
    from service.scaling.report import ScalingReport, scaling_report
    from service.spec import JobSpec, parse_spec, read_spec, read_spec_file
    from service.storage.checkpoints import CheckpointFile, CheckpointView, chunks
    from service.storage.mirror import Mirror
    from service.storage.object_storage import Storage
    from service.storage.traces import TraceView
    from service.sweeps.axes import configurations, trial_needs
    from service.sweeps.control import check_fits
    from service.sweeps.listing import SweepPage, SweepQuery
    from service.sweeps.local import LocalSweep, new_sweep_id, sweep
    from service.sweeps.manager import SweepManager
    from service.sweeps.own_code import own_code_of_sweep
    from service.sweeps.spec import SweepSpec, parse_sweep, read_sweep_file
    from service.sweeps.trial_store import TrialStore
    from service.sweeps.views import SweepSummary, SweepView, TrialView, evidence
    from service.tracking.tracker import Tracking
    from service.turns import Turns
    from service.webhooks.addresses import certificates, networks
    from service.webhooks.sender import Sender
    from service.webhooks.signature import verify
    from service.webhooks.webhook_store import Delivery, Webhook, Webhooks
    from trainers import (
        BitsReport,
        Cluster,
        ClusterInfo,
        CostShare,
        Event,
        Exported,
        FieldError,
        Images,
        Metrics,
        MillraceError,
        ModelCost,
        NodeGroup,
        Plan,
        PlanRequest,
        PlanTable,
        Recipe,
        Resources,
        Result,
        SpecRejected,
        State,
        StepProfile,
        TimingPlan,
        Timings,
        TraceRefused,
        attach,
        check_bits,
        cluster_of,
        count_examples,
        detach,
        embedded,
        explain,
        export_model,
        images_of,
        known_examples,
        metrics_of,
        needed_memory,
        plan_spec,
        plot_plan,
        plot_timings,
        profile_model,
        profile_spec,
        profile_step,
        read_cluster,
        read_profile,
        sentence,
        set_of,
        slope_words,
        start_head,
        stop_head,
        time_layers,
        unknown,
        worker_counts,
    )

_HOME = {
    "service.webhooks.addresses": ("certificates", "networks"),
    "service.catalogue": ("Algorithm", "Dataset", "Model", "algorithms", "datasets", "job_schema", "models"),
    "service.storage.checkpoints": ("CheckpointFile", "CheckpointView", "chunks"),
    "service.claims.claim": ("Claim", "all_claims", "claim_of"),
    "service.claims.page": ("claim_page",),
    "service.claims.picture": ("claim_picture",),
    "service.claims.verdict": ("ClaimReport", "claim_report"),
    "service.doctor": ("Finding", "Health", "Installation", "examine"),
    "service.errors": (
        "CheckpointNotFound", "CopyDamaged", "DatabaseRefused", "DrawingFailed", "FigureNotFound", "JobNotFound",
        "KeyReused", "ModelNotFound", "NeverFits", "SeriesNotFound", "ServiceError", "SpecInvalid", "SpecUnreadable",
        "StateConflict", "StorageFull",
        "StorageRefused", "StorageUnreachable", "SweepNotFound", "TokenRefused", "TooManyInFlight", "TooManyWaiting",
        "TraceNotFound", "WebhookNotFound", "WebhookRefused",
    ),
    "service.jobs.fork": ("as_patch",),
    "service.jobs.assembly": ("build_manager",),
    "service.jobs.manager": ("JobManager", "ManagerConfig"),
    "service.jobs.local": ("LocalRun",),
    "service.jobs.service_metrics": ("ServiceMetrics",),
    "service.jobs.own_code": ("own_code",),
    "service.sweeps.own_code": ("own_code_of_sweep",),
    "service.jobs.progress": ("LogFilter", "Progress", "log_line"),
    "service.jobs.runs": ("RunHandle", "Runs"),
    "service.scaling.figures": ("figures",),
    "service.scaling.markdown": ("markdown",),
    "service.scaling.report": ("ScalingReport", "scaling_report"),
    "service.webhooks.sender": ("Sender",),
    "service.jobs.metric_series": ("AXES", "NAMES", "Line"),
    "service.webhooks.signature": ("verify",),
    "service.plain_yaml": ("MAX_VALUES", "compose_yaml", "load_yaml"),
    "service.spec": ("JobSpec", "parse_spec", "read_spec", "read_spec_file"),
    "service.storage.mirror": ("Mirror",),
    "service.storage.object_storage": ("Storage",),
    "service.storage.traces": ("TraceView",),
    "service.database.job_store": ("Query", "Store"),
    "service.ids": ("new_job_id",),
    "service.sweeps.axes": ("configurations", "trial_needs"),
    "service.sweeps.control": ("check_fits",),
    "service.sweeps.trial_store": ("TrialStore",),
    "service.sweeps.listing": ("SweepPage", "SweepQuery"),
    "service.sweeps.local": ("LocalSweep", "new_sweep_id", "sweep"),
    "service.sweeps.manager": ("SweepManager",),
    "service.sweeps.spec": ("SweepSpec", "parse_sweep", "read_sweep_file"),
    "service.sweeps.views": ("SweepSummary", "SweepView", "TrialView", "evidence"),
    "service.database.audit": ("Act", "Audit", "AuditEntry", "AuditQuery"),
    "service.database.identity": ("LOCAL", "Identity", "Requester", "Role"),
    "service.database.tokens": ("Token", "Tokens"),
    "service.tracking.tracker": ("Tracking",),
    "service.turns": ("Turns",),
    "service.job_summary": ("JobSummary",),
    "service.jobs.views": ("JobView", "Page"),
    "service.jobs.queueing.claims": ("Quotas",),
    "service.jobs.queueing.growth": ("Growth",),
    "service.webhooks.webhook_store": ("Delivery", "Webhook", "Webhooks"),
    "trainers": (
        "BitsReport", "Cluster", "ClusterInfo", "CostShare", "Event", "Exported", "FieldError", "Images", "Metrics",
        "MillraceError", "ModelCost", "NodeGroup", "Plan", "PlanRequest", "PlanTable", "Recipe", "Resources", "Result",
        "SpecRejected", "State", "StepProfile", "TimingPlan", "Timings", "TraceRefused", "attach", "check_bits",
        "cluster_of", "count_examples", "detach", "embedded", "explain", "export_model", "images_of", "known_examples",
        "metrics_of", "needed_memory", "plan_spec", "plot_plan", "plot_timings", "profile_model", "profile_spec",
        "profile_step", "read_cluster", "read_profile", "sentence", "set_of", "slope_words", "start_head", "stop_head",
        "time_layers", "unknown", "worker_counts",
    ),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AXES",
    "LOCAL",
    "MAX_VALUES",
    "NAMES",
    "Act",
    "Algorithm",
    "Audit",
    "AuditEntry",
    "AuditQuery",
    "BitsReport",
    "CheckpointFile",
    "CheckpointNotFound",
    "CheckpointView",
    "Claim",
    "ClaimReport",
    "Cluster",
    "ClusterInfo",
    "CopyDamaged",
    "CostShare",
    "DatabaseRefused",
    "Dataset",
    "Delivery",
    "DrawingFailed",
    "Event",
    "Exported",
    "FieldError",
    "FigureNotFound",
    "Finding",
    "Growth",
    "Health",
    "Identity",
    "Images",
    "Installation",
    "JobManager",
    "JobNotFound",
    "JobSpec",
    "JobSummary",
    "JobView",
    "KeyReused",
    "Line",
    "LocalRun",
    "LocalSweep",
    "LogFilter",
    "ManagerConfig",
    "Metrics",
    "MillraceError",
    "Mirror",
    "Model",
    "ModelCost",
    "ModelNotFound",
    "NeverFits",
    "NodeGroup",
    "Page",
    "Plan",
    "PlanRequest",
    "PlanTable",
    "Progress",
    "Query",
    "Quotas",
    "Recipe",
    "Requester",
    "Resources",
    "Result",
    "Role",
    "RunHandle",
    "Runs",
    "ScalingReport",
    "Sender",
    "SeriesNotFound",
    "ServiceError",
    "ServiceMetrics",
    "SpecInvalid",
    "SpecRejected",
    "SpecUnreadable",
    "State",
    "StateConflict",
    "StepProfile",
    "Storage",
    "StorageFull",
    "StorageRefused",
    "StorageUnreachable",
    "Store",
    "SweepManager",
    "SweepNotFound",
    "SweepPage",
    "SweepQuery",
    "SweepSpec",
    "SweepSummary",
    "SweepView",
    "TimingPlan",
    "Timings",
    "Token",
    "TokenRefused",
    "Tokens",
    "TooManyInFlight",
    "TooManyWaiting",
    "TraceNotFound",
    "TraceRefused",
    "TraceView",
    "Tracking",
    "TrialStore",
    "TrialView",
    "Turns",
    "Webhook",
    "WebhookNotFound",
    "WebhookRefused",
    "Webhooks",
    "algorithms",
    "all_claims",
    "as_patch",
    "attach",
    "build_manager",
    "certificates",
    "check_bits",
    "check_fits",
    "chunks",
    "claim_of",
    "claim_page",
    "claim_picture",
    "claim_report",

    "cluster_of",
    "compose_yaml",
    "configurations",
    "count_examples",
    "datasets",
    "detach",
    "embedded",
    "evidence",
    "examine",
    "explain",
    "export_model",
    "figures",
    "images_of",
    "job_schema",
    "known_examples",
    "load_yaml",
    "log_line",
    "markdown",
    "metrics_of",
    "models",
    "needed_memory",
    "networks",
    "new_job_id",
    "new_sweep_id",
    "own_code",
    "own_code_of_sweep",
    "parse_spec",
    "parse_sweep",
    "plan_spec",
    "plot_plan",
    "plot_timings",
    "profile_model",
    "profile_spec",
    "profile_step",
    "read_cluster",
    "read_profile",
    "read_spec",
    "read_spec_file",
    "read_sweep_file",
    "scaling_report",
    "sentence",
    "set_of",
    "slope_words",
    "start_head",
    "stop_head",
    "sweep",
    "time_layers",
    "trial_needs",
    "unknown",
    "verify",
    "worker_counts",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
