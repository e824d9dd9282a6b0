"""A sweep with something to look at, without running one."""

from typing import Any

from service import SweepSpec, scaling_report
from service.tuning.report import tuning_report
from tests.service.scaling.synthetic import sweep as synthetic
from tests.service.tuning.evidence import grid

AXES: dict[str, Any] = {
    "batch": [64, 256, 1024, 4096],
    "rule": ["none", "sqrt", "linear"],
    "warmup": ["none", "gradual"],
    "seed": [0, 1, 2],
}


def shown(state: str = "RUNNING", seeds: int = 3) -> tuple[dict[str, Any], str]:
    """A sweep as the service shows it, and the JSON of its report."""
    found = synthetic(AXES["batch"], seeds=seeds, points=20)
    results = [
        {
            "id": f"{number:012d}", "number": number, "state": "SUCCEEDED", "reason": "", "message": "",
            "settings": {"batch": one.batch, "rule": one.rule, "warmup": one.warmup, "seed": one.seed},
            "progress": 1.0, "error": one.error, "value": one.error, "starts": 1,
        }
        for number, one in enumerate(found.trials)
    ]  # fmt: skip
    job = {"data": "digits", "model": "mlp", "batch": {"per_worker": 64, "base": 64}}
    spec = SweepSpec.model_validate({"name": "how-large", "axes": AXES, "job": job})
    sweep = {
        "id": "sweep-1", "name": "how-large", "state": state, "reason": "Training", "message": "runs its trials",
        "created": 1_795_157_766.0, "trials": {"total": len(results), "succeeded": len(results)}, "progress": 0.75,
        "eta_s": 90.0, "spec": spec.model_dump(mode="json"), "folder": "/sweeps/sweep-1", "results": results,
        "metric": found.question.metric.model_dump(), "labels": {"team": "blue"}, "notes": "",
        "archived": False, "priority": 0, "project": "default",
    }  # fmt: skip
    return sweep, scaling_report(found).model_dump_json()


def without_baseline() -> tuple[dict[str, Any], str]:
    """One that has only just begun: no trial of its smallest batch has ended."""
    sweep, _ = shown(seeds=1)
    found = synthetic(AXES["batch"], seeds=1, points=20)
    begun = [one.model_copy(update={"state": "RUNNING", "error": None, "points": ()}) for one in found.trials]
    trials = [trial if trial.batch > 256 else begun[number] for number, trial in enumerate(found.trials)]
    for result, trial in zip(sweep["results"], trials, strict=True):
        if trial.state == "RUNNING":
            result |= {"state": "RUNNING", "error": None, "value": None, "progress": 0.3}
    counts = {"total": len(trials), "running": sum(one.batch <= 256 for one in trials)}
    counts["succeeded"] = counts["total"] - counts["running"]
    sweep |= {"id": "sweep-3", "name": "only-begun", "trials": counts}
    return sweep, scaling_report(found.model_copy(update={"trials": tuple(trials)})).model_dump_json()


def tuned() -> tuple[dict[str, Any], str]:
    """One that varies no batch, and its report."""
    found = grid(seeds=2)
    results = [
        {
            "id": one.id, "number": number, "state": "SUCCEEDED", "reason": "", "message": "", "settings": one.settings,
            "progress": 1.0, "error": one.error, "value": one.error, "starts": 1,
        }
        for number, one in enumerate(found.trials, 1)
    ]  # fmt: skip
    sweep, _ = shown("SUCCEEDED", seeds=1)
    axes = {"optimizer.lr": [0.01, 0.03, 0.1, 0.3], "optimizer.name": ["momentum", "sgd"], "data.limit": [100, 200]}
    spec = sweep["spec"] | {"axes": axes | {"seed": [0, 1]}}
    counts = {"total": len(results), "succeeded": len(results)}
    sweep |= {"id": "sweep-2", "name": "tuned", "spec": spec, "results": results, "trials": counts, "progress": 1.0}
    sweep |= {"eta_s": None, "reason": "Completed", "message": "all trials have ended"}
    return sweep, tuning_report(found).model_dump_json()
