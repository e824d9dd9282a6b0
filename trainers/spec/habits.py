"""What sections need of other sections: when to evaluate, what to keep, when to stop, and how data are encoded."""

from pydantic import ValidationInfo

from trainers.data.config import DataSpec
from trainers.data.names import TABLES
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


def codes_for_its_model(data: DataSpec, info: ValidationInfo) -> DataSpec:
    """A table with the encoding that its model reads. Raises ValueError where it is given and is another."""
    model = info.data.get("model")
    if model is None or data.name not in TABLES:
        return data
    if model.name == "tabular" and data.encoding == "one_hot":
        raise ValueError("the model tabular embeds categories by their codes; leave encoding out, or take mlp")
    if model.name != "tabular" and ":" not in model.name and data.encoding == "codes":
        raise ValueError(f"{model.name} takes no codes; leave encoding out, or take the model tabular")
    return data.model_copy(update={"encoding": "codes"}) if model.name == "tabular" else data


def has_whole_parameters(optimizer: AnyOptimizer, info: ValidationInfo) -> AnyOptimizer:
    """Raises ValueError where an optimizer updates whole parameters and the algorithm divides them."""
    algorithm = info.data.get("algorithm")
    if optimizer.whole and algorithm is not None and algorithm.traits.divides_parameters:
        raise ValueError(f"{optimizer.name} updates whole parameters, and {algorithm.traits.divides_parameters}")
    return optimizer
