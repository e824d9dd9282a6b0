"""Distributed training on Ray. Names are looked up when first used: importing this imports no torch and no Ray."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.callback import Callback, SeenEvent
    from trainers.cost.clusters.cluster import Cluster, cluster_of, read_cluster
    from trainers.cost.figures import (
        CostShare,
        Images,
        ModelCost,
        TimingPlan,
        Timings,
        images_of,
        needed_memory,
        slope_words,
    )
    from trainers.cost.layers import profile_model, profile_spec
    from trainers.cost.plan import Plan, PlanRequest, StepProfile, read_profile, worker_counts
    from trainers.cost.plan_plot import plot_plan
    from trainers.cost.plan_table import PlanTable
    from trainers.cost.planning import plan_spec
    from trainers.cost.plot import plot_timings
    from trainers.cost.step_timing import profile_step
    from trainers.cost.timing import time_layers
    from trainers.data.datasets import count_examples
    from trainers.data.names import DATASETS
    from trainers.elastic.node_group import NodeGroup, has_room
    from trainers.elastic.placement import NodeCapacity
    from trainers.errors import (
        DataNotFound,
        ExportFailed,
        FieldError,
        LossNotFinite,
        MillraceError,
        RunFailed,
        SpecRejected,
        TraceRefused,
        UserCodeFailed,
    )
    from trainers.events import (
        NO_ROOM,
        RETRYING,
        Event,
        Metrics,
        Result,
        State,
        StopReason,
        adds_to_work,
        error_median,
        headline_of,
        is_judged,
        last_median,
        metrics_of,
        set_of,
        who_trains,
    )
    from trainers.given import is_given, refuse_given
    from trainers.models.names import OWN, torchvision_names
    from trainers.models.objective import Loss, Supervised
    from trainers.runtime.api import train
    from trainers.runtime.cluster import (
        ClusterInfo,
        Resources,
        attach,
        available_resources,
        cluster_is_open,
        detach,
        embedded,
        ensure_own_ray,
        metrics_targets,
        needs,
        start_head,
        stop_head,
        total_resources,
    )
    from trainers.runtime.counting import count
    from trainers.runtime.event_log import EventLog, EventLogReader, Fence
    from trainers.runtime.runs import Run, cleanup_run, find_run, preflight, remove_files, start_run
    from trainers.runtime.warm_runner import WarmRunner
    from trainers.spec import PATH_FIELDS, TrainSpec, absolute, field_errors
    from trainers.spec.recipe import Recipe, explain, known_examples
    from trainers.spelling import sentence, unknown
    from trainers.tasks.base import Task
    from trainers.tasks.measures import Mean, Measure, Perplexity, Sum
    from trainers.training.bits_check import BitsReport, check_bits
    from trainers.training.export import Exported, export_model

_HOME = {
    "trainers.callback": ("Callback", "SeenEvent"),
    "trainers.cost.figures": (
        "Images", "ModelCost", "CostShare", "TimingPlan", "Timings", "images_of", "needed_memory", "slope_words",
    ),
    "trainers.cost.layers": ("profile_model", "profile_spec"),
    "trainers.cost.clusters.cluster": ("Cluster", "cluster_of", "read_cluster", "shipped_clusters"),
    "trainers.cost.plan": ("Plan", "PlanRequest", "StepProfile", "read_profile", "worker_counts"),
    "trainers.cost.plan_plot": ("plot_plan",),
    "trainers.cost.plan_table": ("PlanTable",),
    "trainers.cost.planning": ("check_profile", "counted_fields", "plan_spec", "plan_work"),
    "trainers.cost.workload": ("Workload",),
    "trainers.cost.plot": ("plot_timings",),
    "trainers.cost.step_timing": ("profile_step",),
    "trainers.cost.timing": ("time_layers",),
    "trainers.data.datasets": ("count_examples",),
    "trainers.data.names": ("DATASETS",),
    "trainers.elastic.node_group": ("NodeGroup", "has_room"),
    "trainers.elastic.placement": ("NodeCapacity",),
    "trainers.errors": (
        "DataNotFound", "ExportFailed", "FieldError", "LossNotFinite", "MillraceError", "RunFailed", "SpecRejected",
        "TraceRefused", "UserCodeFailed",
    ),
    "trainers.events": (
        "NO_ROOM", "RETRYING", "Event", "Metrics", "Result", "State", "StopReason", "adds_to_work", "error_median",
        "headline_of", "is_judged", "last_median", "metrics_of", "set_of", "who_trains",
    ),
    "trainers.given": ("is_given", "refuse_given"),
    "trainers.training.bits_check": ("BitsReport", "check_bits"),
    "trainers.training.export": ("Exported", "export_model"),
    "trainers.models.names": ("OWN", "torchvision_names"),
    "trainers.spec.recipe": ("Recipe", "explain", "known_examples"),
    "trainers.runtime.api": ("train",),
    "trainers.runtime.cluster": (
        "ClusterInfo", "Resources", "attach", "available_resources", "cluster_is_open", "detach", "embedded",
        "ensure_own_ray", "metrics_targets", "needs", "start_head", "stop_head", "total_resources",
    ),
    "trainers.runtime.event_log": ("Fence", "EventLog", "EventLogReader"),
    "trainers.runtime.counting": ("count",),
    "trainers.runtime.runs": ("Run", "find_run", "preflight", "remove_files", "start_run", "cleanup_run"),
    "trainers.runtime.warm_runner": ("WarmRunner",),
    "trainers.tasks.base": ("Task",),
    "trainers.tasks.measures": ("Mean", "Measure", "Perplexity", "Sum"),
    "trainers.models.objective": ("Loss", "Supervised"),
    "trainers.spelling": ("sentence", "unknown"),
    "trainers.spec": ("PATH_FIELDS", "TrainSpec", "absolute", "field_errors"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DATASETS", "NO_ROOM", "OWN", "PATH_FIELDS", "RETRYING", "BitsReport", "Callback", "Cluster", "ClusterInfo",
    "CostShare", "DataNotFound", "Event", "EventLog", "EventLogReader", "ExportFailed", "Exported", "Fence",
    "FieldError", "Images", "Loss", "LossNotFinite", "Mean", "Measure", "Metrics", "MillraceError", "ModelCost",
    "NodeCapacity", "NodeGroup", "Perplexity", "Plan", "PlanRequest", "PlanTable", "Recipe", "Resources", "Result",
    "Run", "RunFailed", "SeenEvent", "SpecRejected", "State", "StepProfile", "StopReason", "Sum", "Supervised", "Task",
    "TimingPlan", "Timings", "TraceRefused", "TrainSpec", "UserCodeFailed", "WarmRunner", "Workload", "absolute",
    "adds_to_work", "attach", "available_resources", "check_bits", "check_profile", "cleanup_run", "cluster_is_open",
    "cluster_of", "count", "count_examples", "counted_fields", "detach", "embedded", "ensure_own_ray", "error_median",
    "explain", "export_model", "field_errors", "find_run", "has_room", "headline_of", "images_of", "is_given",
    "is_judged", "known_examples", "last_median", "metrics_of", "metrics_targets", "needed_memory", "needs",
    "plan_spec", "plan_work", "plot_plan", "plot_timings", "preflight", "profile_model", "profile_spec", "profile_step",
    "read_cluster", "read_profile", "refuse_given", "remove_files", "sentence", "set_of", "shipped_clusters",
    "slope_words", "start_head", "start_run", "stop_head", "time_layers", "torchvision_names", "total_resources",
    "train", "unknown", "who_trains", "worker_counts",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULE[name]), name)  # asked for once
    return found
