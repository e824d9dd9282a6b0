"""Asynchronous halving, with Tune's own scheduler, on results in the form in which Tune hands them over."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

from service import parse_sweep
from service.scaling.metric import Metric
from service.sweeps import control
from service.sweeps.search.searcher import scheduler
from service.sweeps.trial_store import Ending, TrialState
from trainers import EventLog


def test_another_driver_knows_what_the_trials_before_came_to(tmp_path: Path) -> None:
    """A driver ends while all trials wait for their turn, and may die."""
    job = {"workers": 1, "epochs": 4}
    spec = parse_sweep({"job": job, "axes": {"multiple": [1, 15]}, "search": {"name": "asha", "grace_epochs": 1}})
    store = control.begin(tmp_path, "sweep-1", spec)
    first, second = store.trials()
    store.run_dir(first.id).mkdir(parents=True)
    log = EventLog(store.run_dir(first.id))
    log.append("evaluation", {"epoch": 1, "examples": 100, "test_accuracy": 0.5, "test_loss": 1.0})
    log.close()
    store.begin(first.id)
    store.finish(first.id, Ending(state=TrialState.SUCCEEDED, reason="Succeeded", message=""))
    store.begin(second.id)
    halving = scheduler(store, spec)
    trial = SimpleNamespace(trial_id="0", config={"trial": second.id}, stub=False)
    halving.on_trial_add(None, trial)
    halving.on_trial_result(None, trial, {"epoch": 1, "error": 0.9, "fraction": 0.25})
    asked = store.asked(second.id)
    assert asked is not None
    assert asked.reason == "Asha"


def test_the_worse_trial_of_a_rung_is_asked_to_stop_and_told_in_the_metric_of_its_task(tmp_path: Path) -> None:
    metric = Metric(name="perplexity", higher_is_better=False)
    axes = {"multiple": [1, 15]}
    job = {"workers": 1, "epochs": 4}
    spec = parse_sweep({"job": job, "axes": axes, "search": {"name": "asha", "grace_epochs": 1}})
    store = control.begin(tmp_path, "sweep-1", spec)
    store.compares(metric)
    halving = scheduler(store, spec)
    for row, error in zip(store.trials(), (2.5, 31.0), strict=True):
        trial = SimpleNamespace(trial_id=row.id, config={"trial": row.id}, stub=False)
        store.begin(row.id)
        halving.on_trial_add(None, trial)
        result: dict[str, Any] = {"epoch": 1, "error": error, "fraction": 0.25, "metric": metric.model_dump()}
        assert halving.on_trial_result(None, trial, flatten_dict(result)) == TrialScheduler.CONTINUE
    better, worse = [store.asked(row.id) for row in store.trials()]
    assert better is None
    assert worse is not None
    assert (worse.reason, worse.message) == (
        "Asha",
        "stopped: at epoch 1 its perplexity 31.0000 was not among the best",
    )
