"""Distributed training on Ray. Names are looked up when first used: importing this imports no torch and no Ray."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.cost.figures import Images, ModelCost, Share, TimingPlan, Timings, images_of, slope_words
    from trainers.cost.layers import profile_model
    from trainers.cost.plot import plot_timings
    from trainers.cost.timing import time_layers
    from trainers.data.names import DATASETS
    from trainers.errors import (
        DataNotFound,
        ExportFailed,
        LossNotFinite,
        MillraceError,
        RunFailed,
        SpecRejected,
        UserCodeFailed,
    )
    from trainers.events import RETRYING, Event, Metrics, Result, State, error_median
    from trainers.export import Exported, export_model
    from trainers.models.names import OWN, torchvision_names
    from trainers.optim.recipe import Recipe, explain, known_examples
    from trainers.optim.scaling import batch_factor, scaled_rate
    from trainers.optim.schedules import warms_up
    from trainers.runtime.api import train
    from trainers.runtime.cluster import (
        ClusterInfo,
        Resources,
        attach,
        available_resources,
        detach,
        embedded,
        metrics_targets,
        needs,
        start_head,
        stop_head,
        total_resources,
    )
    from trainers.runtime.journal import Fence, Journal, JournalReader
    from trainers.runtime.runs import Run, find_run, preflight, remove_files, start_run, sweep_run
    from trainers.runtime.series import Series
    from trainers.spec import PATH_FIELDS, FieldError, TrainSpec, absolute, field_errors

_HOME = {
    "trainers.cost.figures": ("Images", "ModelCost", "Share", "TimingPlan", "Timings", "images_of", "slope_words"),
    "trainers.cost.layers": ("profile_model",),
    "trainers.cost.plot": ("plot_timings",),
    "trainers.cost.timing": ("time_layers",),
    "trainers.data.names": ("DATASETS",),
    "trainers.errors": (
        "DataNotFound", "ExportFailed", "LossNotFinite", "MillraceError", "RunFailed", "SpecRejected", "UserCodeFailed",
    ),
    "trainers.events": ("RETRYING", "Event", "Metrics", "Result", "State", "error_median"),
    "trainers.export": ("Exported", "export_model"),
    "trainers.models.names": ("OWN", "torchvision_names"),
    "trainers.optim.recipe": ("Recipe", "explain", "known_examples"),
    "trainers.optim.scaling": ("batch_factor", "scaled_rate"),
    "trainers.optim.schedules": ("warms_up",),
    "trainers.runtime.api": ("train",),
    "trainers.runtime.cluster": (
        "ClusterInfo", "Resources", "attach", "available_resources", "detach", "embedded", "metrics_targets", "needs",
        "start_head", "stop_head", "total_resources",
    ),
    "trainers.runtime.journal": ("Fence", "Journal", "JournalReader"),
    "trainers.runtime.runs": ("Run", "find_run", "preflight", "remove_files", "start_run", "sweep_run"),
    "trainers.runtime.series": ("Series",),
    "trainers.spec": ("PATH_FIELDS", "FieldError", "TrainSpec", "absolute", "field_errors"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "DATASETS", "OWN", "PATH_FIELDS", "RETRYING", "ClusterInfo", "DataNotFound", "Event", "ExportFailed", "Exported",
    "Fence", "FieldError", "Images", "Journal", "JournalReader", "LossNotFinite", "Metrics", "MillraceError",
    "ModelCost", "Recipe", "Resources", "Result", "Run", "RunFailed", "Series", "Share", "SpecRejected", "State",
    "TimingPlan", "Timings", "TrainSpec", "UserCodeFailed", "absolute", "attach", "available_resources",
    "batch_factor", "detach", "embedded", "error_median", "explain", "export_model", "field_errors", "find_run",
    "images_of", "known_examples", "metrics_targets", "needs", "plot_timings", "preflight", "profile_model",
    "remove_files", "scaled_rate", "slope_words", "start_head", "start_run", "stop_head", "sweep_run", "time_layers",
    "torchvision_names", "total_resources", "train", "warms_up",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULE[name]), name)  # asked for once
    return found
