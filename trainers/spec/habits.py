"""What the sections of a trainer's habits (when to evaluate, what to keep, when to stop) need of the other sections."""

from pydantic import ValidationInfo

from trainers.optim.optimizers import AnyOptimizer
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


def has_whole_parameters(optimizer: AnyOptimizer, info: ValidationInfo) -> AnyOptimizer:
    """Raises ValueError where an optimizer updates whole parameters and the algorithm divides them."""
    algorithm = info.data.get("algorithm")
    if optimizer.whole and algorithm is not None and algorithm.traits.divides_parameters:
        raise ValueError(f"{optimizer.name} updates whole parameters, and {algorithm.traits.divides_parameters}")
    return optimizer
