"""By which metric a recipe judges a run: what is kept of it, and when it ends."""

from trainers.spec.improvement import MetricChoice
from trainers.spec.quantity import Quantity
from trainers.spec.train import TrainSpec
from trainers.tasks.config import METRICS


def judgement(spec: TrainSpec) -> dict[str, Quantity]:
    """The best model and the early end, as far as they are asked for."""
    found = dict[str, Quantity]()
    if best := spec.checkpoint.keep_best:
        formula = "the version that an evaluation finds best: best.safetensors, beside the last one, model.safetensors"
        found["keep_best"] = Quantity(value=_metric(best, spec), formula=formula)
    if stop := spec.early_stop:
        delta = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
        formula = f"ends after so many evaluations in a row in which {_metric(stop, spec)} is not better{delta}"
        found["early_stop"] = Quantity(value=stop.patience, formula=formula, source="Prechelt 1998")
    return found


def _metric(choice: MetricChoice, spec: TrainSpec) -> str:
    """Its name, and in which direction it is better, as far as this is known of a task of the user's."""
    known = METRICS.get(spec.task.name, {})
    name = choice.metric or next(iter(known), "the headline of the task")
    mode = known.get(name, choice.mode) if choice.mode == "auto" else choice.mode
    return name if mode == "auto" else f"{name} ({'more' if mode == 'max' else 'less'} is better)"
