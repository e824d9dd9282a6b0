"""What the sections of a trainer's habits (when to evaluate, what to keep, when to stop) need of the other sections."""

from pydantic import ValidationInfo

from trainers.spec.evaluate import EvaluateSpec


def counts_steps(evaluate: EvaluateSpec, info: ValidationInfo) -> EvaluateSpec:
    """Raises ValueError where steps are counted that are not all of one size."""
    elastic = info.data.get("elastic")
    if evaluate.every_steps is not None and elastic is not None and elastic.mode == "scale_batch":
        raise ValueError(
            "every_steps counts steps of one size, and with elastic.mode: scale_batch a step is as large as the "
            "workers are many; use every_epochs or every_s"
        )
    return evaluate
