"""Asynchronous halving, with Tune's own scheduler, on results in the form in which Tune hands them over."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

from service import parse_sweep
from service.scaling.metric import Metric
from service.sweeps import control
from service.sweeps.search import scheduler


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
