"""What sections need of other sections: when to evaluate, what to keep, when to stop, and how data are encoded."""

from pydantic import ValidationInfo

from trainers.data.config import DataSpec
from trainers.data.names import RECORDS, TABLES
from trainers.links.names import WireName
from trainers.models.config import ModelSpec
from trainers.models.names import LossName, PrecisionName
from trainers.optim.clip import ClipSpec
from trainers.optim.compress.config import CompressSpec
from trainers.optim.ema import EmaSpec
from trainers.optim.late.config import Compensation
from trainers.optim.optimizers import AnyOptimizer
from trainers.optim.schedules import WarmupSpec
from trainers.spec.checkpoint import CheckpointSpec
from trainers.spec.evaluate import EvaluateSpec
from trainers.spec.improvement import measured


def counts_steps(evaluate: EvaluateSpec, info: ValidationInfo) -> EvaluateSpec:
    """Raises ValueError where steps are counted that are not all of one size."""
    if evaluate.every_steps is not None and _follows_workers(info):
        raise ValueError(
            "every_steps counts steps of one size, and with elastic.mode: scale_batch a step is as large as the "
            "workers are many; use every_epochs or every_s"
        )
    return evaluate


def knows_classes(evaluate: EvaluateSpec, info: ValidationInfo) -> EvaluateSpec:
    """Raises ValueError where a part of the classes is evaluated, of a task that has none or measures by itself."""
    task = info.data.get("task")
    if evaluate.classes is not None and task is not None and task.name != "classification":
        why = "measures what its `metrics` says" if ":" in task.name else "does not tell classes of examples apart"
        raise ValueError(f"classes is for task: classification, and {task.name} {why}; leave it out")
    return evaluate


def keeps_what_is_measured(checkpoint: CheckpointSpec, info: ValidationInfo) -> CheckpointSpec:
    """Raises ValueError where the best model is to be judged by a metric that the task does not have."""
    if checkpoint.keep_best is None:
        return checkpoint
    try:
        best = measured(checkpoint.keep_best, info.data.get("task"))
    except ValueError as error:
        raise ValueError(f"keep_best: {error}") from None
    return checkpoint.model_copy(update={"keep_best": best})


def with_its_others(data: DataSpec, info: ValidationInfo) -> DataSpec:
    """Data as the model and the algorithm take them. Raises ValueError where they do not."""
    algorithm = info.data.get("algorithm")
    _can_be_varied(data, info)
    if algorithm is None:
        return _codes_for_its_model(data, info)
    if data.on_error == "skip" and data.name not in TABLES:
        traits = algorithm.traits
        if traits.objective != "any" or traits.holds_examples:
            raise ValueError(
                f"on_error: skip makes minibatches smaller, which {algorithm.name} with these options cannot; take "
                "on_error: fail, or sync, mixed, admm, diloco, or downpour without backprop"
            )
    if not data.shuffle and getattr(algorithm, "shuffle", "none") != "none":
        raise ValueError(
            f"shuffle: false keeps the order of the data, and {algorithm.name} moves examples between workers at "
            "random before each round; set algorithm.shuffle: none too, or leave this out"
        )
    return _codes_for_its_model(data, info)


def is_called_whole(model: ModelSpec, info: ValidationInfo) -> ModelSpec:
    """Raises ValueError where a model is compiled or recomputed, and an algorithm calls its layers in groups."""
    algorithm = info.data.get("algorithm")
    used = [name for name in ("compile", "checkpoint_activations") if getattr(model, name)]
    if used and algorithm is not None and algorithm.traits.objective != "any":
        raise ValueError(
            f"{algorithm.name} with these options calls groups of layers, and {used[0]} is of the whole model; leave "
            "it out, or take sync, or downpour without backprop"
        )
    return model


def suits_task(loss: LossName, info: ValidationInfo) -> LossName:
    """Raises ValueError where the loss is one of another task."""
    task = info.data.get("task")
    if loss == "logistic" and task is not None and task.name != "classification":
        own = ", and choose that of regression by task.kwargs.loss" if task.name == "regression" else ""
        raise ValueError(f"logistic is a loss of task: classification; leave it out{own}")
    return loss


def _can_be_varied(data: DataSpec, info: ValidationInfo) -> None:
    """Raises ValueError where there are no images to vary, or nobody knows what to do with mixed labels."""
    task, algorithm, mixed = info.data.get("task"), info.data.get("algorithm"), " and ".join(data.mixed_by)
    if data.varied_by and data.name in RECORDS:
        raise ValueError(f"{' and '.join(data.varied_by)}: for images with labels, not for {data.name}; leave it out")
    if mixed and task is not None and task.name != "classification" and ":" not in task.name:
        raise ValueError(
            f"{mixed}: an example gets a part of two labels, which {task.name} does not take; leave it out, or take "
            "task: classification or one of your own"
        )
    if mixed and algorithm is not None and algorithm.traits.objective == "labels":
        raise ValueError(
            f"{mixed}: an example gets a part of two labels, and {algorithm.name} divides the classes among workers; "
            "leave it out, or take sync, downpour, mixed, parallel_sgd, diloco or admm"
        )


def _codes_for_its_model(data: DataSpec, info: ValidationInfo) -> DataSpec:
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
        name = getattr(optimizer, "optimizer", optimizer.name)  # that of a class
        raise ValueError(f"{name} updates whole parameters, and {algorithm.traits.divides_parameters}")
    return optimizer


def has_its_norm(clip: ClipSpec | None, info: ValidationInfo) -> ClipSpec | None:
    """Raises ValueError where the norm of a gradient is limited, and nobody knows it before the update."""
    algorithm = info.data.get("algorithm")
    if clip is not None and clip.norm is not None and algorithm is not None and algorithm.traits.hides_norm:
        raise ValueError(f"the norm is that of the whole gradient, and {algorithm.traits.hides_norm}")
    return clip


def has_its_average(ema: EmaSpec | None, info: ValidationInfo) -> EmaSpec | None:
    """Raises ValueError where an average over the updates is not one of what is evaluated."""
    algorithm = info.data.get("algorithm")
    if ema is not None and algorithm is not None and algorithm.traits.hides_average:
        raise ValueError(f"the average is evaluated, and {algorithm.traits.hides_average}")
    return ema


def suits_device_and_algorithm(precision: PrecisionName, info: ValidationInfo) -> PrecisionName:
    """Raises ValueError where no GPU computes that has TF32, or an algorithm makes products of its own."""
    workers, device, algorithm = (info.data.get(name) for name in ("workers", "device", "algorithm"))
    if precision == "tf32" and (device == "cpu" or (workers is not None and not workers.gpus)):
        raise ValueError("tf32 is of GPUs; set workers.gpus, or take float32, or bfloat16")
    if precision in ("bfloat16", "float16") and algorithm is not None and algorithm.traits.computes_in_float32:
        raise ValueError(algorithm.traits.computes_in_float32)
    if precision == "float16" and algorithm is not None and not algorithm.traits.scales_loss:
        raise ValueError(
            "in float16 the loss is scaled, and a step whose summed gradient is not finite is left out by all workers, "
            "which only sync does, with form: all_reduce and reduction: canonical; take that, or bfloat16"
        )
    return precision


def sends_gradients(wire: WireName, info: ValidationInfo) -> WireName:
    """Raises ValueError where something else travels that is not to be rounded."""
    algorithm = info.data.get("algorithm")
    if wire != "float32" and algorithm is not None and not algorithm.traits.sends_gradients:
        raise ValueError(
            f"gradients of minibatches may be rounded, and {algorithm.name} with these options sends parameters, "
            "activations or sums that others add to, which may not; leave wire out, or take sync with reduction: "
            "canonical, downpour or mixed"
        )
    return wire


def can_be_compressed(compress: CompressSpec | None, info: ValidationInfo) -> CompressSpec | None:
    """Raises ValueError where nobody keeps what is not sent, or something else is done to what travels."""
    algorithm, wire = info.data.get("algorithm"), info.data.get("wire")
    if compress is None or algorithm is None:
        return compress
    if algorithm.traits.sends_whole:
        raise ValueError(
            f"what is not sent is kept and added the next time, and {algorithm.traits.sends_whole}; or leave compress "
            "out"
        )
    if compress.powersgd is not None and not algorithm.traits.is_synchronous:
        raise ValueError(
            "powersgd adds up what all workers send, and a push to the shards is of one; take top_k, sign or int8, or "
            "sync or diloco"
        )
    if compress.powersgd is not None and getattr(algorithm, "streams", False):
        raise ValueError(
            "powersgd adds up twice, the second time by what came of the first, and a sum that travels while all train "
            "on is made once; take top_k, sign or int8, or fragments: 1, delay: 0 and alpha: 0"
        )
    if _follows_workers(info):
        raise ValueError(
            "a virtual worker keeps what it has not sent, and with elastic.mode: scale_batch virtual workers come and "
            "go; leave compress out, or take fixed_batch"
        )
    if info.data.get("precision") == "float16":
        raise ValueError(
            "the scale of the loss changes, and what was kept has that of another step; leave compress out, or take "
            "precision: bfloat16"
        )
    if getattr(algorithm, "noise_scale", False):
        raise ValueError("noise_scale measures gradients that are added whole; leave one of the two out")
    if wire not in (None, "float32"):
        raise ValueError(f"it says what travels, and wire: {wire} too; leave one of the two out")
    if isinstance(algorithm.traits.late, Compensation):
        raise ValueError(
            "server_rule: delay_compensated squares the gradient of one version of the parameters, and what was kept "
            "is of older ones; leave compress out, or take plain, staleness_aware, staleness_damped or gap_aware"
        )
    return compress


def has_one_size(limit: int | None, info: ValidationInfo) -> int | None:
    """Raises ValueError where a run ends after so many steps or examples, and steps are not all of one size."""
    if limit is not None and _follows_workers(info):
        raise ValueError("with elastic.mode: scale_batch steps differ in size; give epochs only")
    return limit


def ends_within(warmup: WarmupSpec, info: ValidationInfo) -> WarmupSpec:
    """Raises ValueError where a warm-up is longer than the run, or does not go with its schedule."""
    epochs, schedule = info.data.get("epochs"), info.data.get("schedule")
    if warmup.name == "none" or epochs is None or schedule is None:
        return warmup
    if schedule.warms_up:
        raise ValueError(f"the schedule {schedule.name} begins with a warm-up of its own; leave this one out")
    if warmup.steps is not None and _follows_workers(info):
        raise ValueError(
            "warmup.steps counts steps of one size, and with elastic.mode: scale_batch a step is as large as the "
            "workers are many; use warmup.epochs or warmup.share"
        )
    if warmup.steps is None and warmup.share is None and warmup.epochs >= epochs:
        problem = f"a warm-up of {warmup.length} does not end within a run of {epochs}"
        raise ValueError(f"{problem}; set warmup.epochs below that, or give warmup.steps or warmup.share")
    return warmup


def _follows_workers(info: ValidationInfo) -> bool:
    """Whether the batch does, and with it the size of a step."""
    elastic = info.data.get("elastic")
    return elastic is not None and elastic.mode == "scale_batch"
