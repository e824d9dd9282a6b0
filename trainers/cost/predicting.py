"""Predicts the rate of a run from a profile of its step. Needs torch."""

from trainers.cost.kept import KeptProfile
from trainers.cost.plan import Candidate, PlanRequest
from trainers.cost.planner import plan_work
from trainers.prediction import PARTS, Prediction
from trainers.spec import TrainSpec


def predict(spec: TrainSpec, kept: KeptProfile) -> Prediction:
    """What the spec's own number of workers would reach on the machine of a profile.

    Raises:
        SpecRejected: The cost model does not cover the spec.
    """
    plan = plan_work(spec, kept.work, PlanRequest(profile=kept, workers=(spec.workers.count,)))
    found = plan.of(spec.workers.count)
    return Prediction(
        workers=found.workers,
        examples_per_s=found.examples_per_s,
        least_per_s=found.least_per_s,
        most_per_s=found.most_per_s,
        basis=plan.basis,
        parts=parts_of(found),
    )


def parts_of(found: Candidate) -> dict[str, float]:
    """The step's seconds as `Prediction` has them: of a worker, for an example."""
    seconds = (found.computing_s, found.data_s, found.seen_s + found.waiting_s)
    of_one = found.workers / (found.examples_per_s * found.step_s)
    return {name: each * of_one for name, each in zip(PARTS, seconds, strict=True)}
