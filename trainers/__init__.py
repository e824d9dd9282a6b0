"""Distributed training on Ray. Names are looked up when first used: importing this imports no torch and no Ray."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.errors import DataNotFound, LossNotFinite, MillraceError, RunFailed, SpecRejected, UserCodeFailed
    from trainers.events import Event, Metrics, Result, State
    from trainers.optim.recipe import Recipe, explain, known_examples
    from trainers.runtime.api import train
    from trainers.runtime.cluster import (
        ClusterInfo,
        Resources,
        attach,
        available_resources,
        detach,
        embedded,
        start_head,
        stop_head,
        total_resources,
    )
    from trainers.runtime.journal import Journal, JournalReader
    from trainers.runtime.runs import Run, find_run, needs, preflight, start_run, sweep_run
    from trainers.spec import FieldError, TrainSpec, field_errors

_HOME = {
    "trainers.errors": (
        "DataNotFound", "LossNotFinite", "MillraceError", "RunFailed", "SpecRejected", "UserCodeFailed",
    ),
    "trainers.events": ("Event", "Metrics", "Result", "State"),
    "trainers.optim.recipe": ("Recipe", "explain", "known_examples"),
    "trainers.runtime.api": ("train",),
    "trainers.runtime.cluster": (
        "ClusterInfo", "Resources", "attach", "available_resources", "detach", "embedded", "start_head", "stop_head",
        "total_resources",
    ),
    "trainers.runtime.journal": ("Journal", "JournalReader"),
    "trainers.runtime.runs": ("Run", "find_run", "needs", "preflight", "start_run", "sweep_run"),
    "trainers.spec": ("FieldError", "TrainSpec", "field_errors"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ClusterInfo", "DataNotFound", "Event", "FieldError", "Journal", "JournalReader", "LossNotFinite", "Metrics",
    "MillraceError", "Recipe", "Resources", "Result", "Run", "RunFailed", "SpecRejected", "State", "TrainSpec",
    "UserCodeFailed", "attach", "available_resources", "detach", "embedded", "explain", "field_errors", "find_run",
    "known_examples", "needs", "preflight", "start_head", "start_run", "stop_head", "sweep_run", "total_resources",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)
