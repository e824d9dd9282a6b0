"""TrainSpec: the one description of a run. Frozen, every field with its unit and bound; imports no torch.

A spec is read from YAML, JSON or Python. Wherever a section has a `name` (`algorithm`, `optimizer`, `schedule`,
`model`, `data`), the name alone may stand for it: `algorithm: downpour`. `workers: 4` and `batch: 32` likewise.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator

from trainers.algorithms import AnyAlgorithm
from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.sync.config import SyncConfig
from trainers.data.config import DataSpec
from trainers.data.order import Extent, Order
from trainers.errors import SpecRejected
from trainers.links.names import WireName
from trainers.models.config import ModelSpec
from trainers.models.names import LossName, PrecisionName
from trainers.optim.clip import ClipSpec
from trainers.optim.compress.config import CompressSpec, named
from trainers.optim.ema import EmaSpec
from trainers.optim.optimizers import AnyOptimizer
from trainers.optim.scaling import BatchScaling, ScalingSpec
from trainers.optim.schedules import (
    AnySchedule,
    ConstantSchedule,
    RunLength,
    Schedule,
    WarmupSpec,
    build_schedule,
    run_length,
    warms_up,
)
from trainers.section import Section, shorthand
from trainers.spec.batch import BatchSpec
from trainers.spec.callbacks import Callbacks
from trainers.spec.checkpoint import CheckpointSpec
from trainers.spec.elastic import ElasticSpec
from trainers.spec.evaluate import EvaluateSpec
from trainers.spec.habits import (
    can_be_compressed,
    counts_steps,
    ends_within,
    has_its_average,
    has_its_norm,
    has_one_size,
    has_whole_parameters,
    is_called_whole,
    keeps_what_is_measured,
    knows_classes,
    sends_gradients,
    suits_device_and_algorithm,
    suits_task,
    with_its_others,
)
from trainers.spec.improvement import STOP_BY_METRIC, EarlyStopSpec, judges_evaluations
from trainers.spec.parameter_server import ParameterServerSpec
from trainers.spec.paths import with_paths
from trainers.spec.spec_errors import field_errors, in_words
from trainers.spec.workers import WorkersSpec
from trainers.tasks.config import TaskSpec

Device = Literal["auto", "cpu", "cuda"]
MOST_EPOCHS = 1_000_000

TransportName = Literal["auto", "shared_memory", "process_group", "object_store"]


def usual_optimizer(before: dict[str, Any]) -> str:
    """The optimizer of a spec that names none, by the algorithm that stands before it."""
    algorithm: AlgorithmConfig = before.get("algorithm", SyncConfig())
    return algorithm.usual_optimizer


def usual_model(before: dict[str, Any]) -> str:
    """The model of a spec that names none, by the task that stands before it."""
    task: TaskSpec = before.get("task", TaskSpec())
    return task.usual_model


class TrainSpec(Section):
    """One training run: algorithm, model, data, workers, and how the learning rate moves."""

    if not TYPE_CHECKING:  # which knows the fields

        def __init__(self, /, **fields: Any) -> None:
            """Raises a ValidationError that says of each field what to change."""
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise in_words(error, type(self)) from None

        __init__.__pydantic_base_init__ = True  # so that a spec that is read from a file is not made by it

    code: str | None = None
    """A folder with modules of your own for `module:function`. It is sent to the workers and appended to their import
    path."""

    workers: Annotated[WorkersSpec, shorthand("count", WorkersSpec, int)] = WorkersSpec()
    """How many workers train, and with which resources."""

    algorithm: Annotated[AnyAlgorithm, shorthand("name", AnyAlgorithm, str, default="sync")] = SyncConfig()
    """Which parallel SGD, by name alone (`algorithm: downpour`) or with its options."""

    task: Annotated[TaskSpec, shorthand("name", TaskSpec, str)] = TaskSpec()
    """What is learned: labels, numbers, the next token, or a task of your own."""

    model: Annotated[
        ModelSpec,
        shorthand("name", ModelSpec, str, default=usual_model),
        AfterValidator(is_called_whole),
    ] = cast(ModelSpec, {})  # a section without a name, until the task is known
    """The model. Left out, it is that which suits the task."""

    loss: Annotated[LossName, AfterValidator(suits_task)] = "cross_entropy"
    """Of the task `classification`: `cross_entropy` of a softmax, or `logistic`, one independent logistic unit a class
    (paper 1, section 5)."""

    data: Annotated[DataSpec, shorthand("name", DataSpec, str), AfterValidator(with_its_others)] = DataSpec()
    """The training and test examples."""

    batch: Annotated[BatchSpec, shorthand("per_worker", BatchSpec, int)] = BatchSpec()
    """How many examples a step trains."""

    optimizer: Annotated[
        AnyOptimizer,
        shorthand("name", AnyOptimizer, str, default=usual_optimizer),
        AfterValidator(has_whole_parameters),
    ] = cast(AnyOptimizer, {})  # a section without a name, until the algorithm is known
    """The update rule and its learning rate. Left out, it is `adagrad` for `downpour` and `mixed`, which bears late
    gradients, `adamw` for `diloco` and `push: delta`, `sgd` for `easgd`, and `momentum` for the others."""

    scaling: Annotated[ScalingSpec, shorthand("name", ScalingSpec, str)] = ScalingSpec()
    """How learning rate and weight decay follow the batch: `none`, `sqrt` or `linear`."""

    schedule: Annotated[AnySchedule, shorthand("name", AnySchedule, str, default="constant")] = ConstantSchedule()
    """How the learning rate moves with the examples seen."""

    clip: Annotated[ClipSpec | None, AfterValidator(has_its_norm)] = None
    """How large the gradient of an update may be: its `norm`, or the `value` of an element; none: as large as it is."""

    ema: Annotated[EmaSpec | None, AfterValidator(has_its_average)] = None
    """An average of the parameters over the updates, which is evaluated and exported; none: they are, as they are."""

    ps: Annotated[ParameterServerSpec, shorthand("shards", ParameterServerSpec, int)] = ParameterServerSpec()
    """The parameter server's shards."""

    elastic: ElasticSpec = ElasticSpec()
    """How the run adapts when machines come and go."""

    evaluate: Annotated[EvaluateSpec, AfterValidator(counts_steps), AfterValidator(knows_classes)] = EvaluateSpec()
    """When to evaluate."""

    checkpoint: Annotated[CheckpointSpec, AfterValidator(keeps_what_is_measured)] = CheckpointSpec()
    """When to write a checkpoint, and which to start from."""

    epochs: int = Field(default=5, ge=1, le=MOST_EPOCHS)
    """Passes over the training set."""

    max_steps: Annotated[int | None, AfterValidator(has_one_size)] = Field(default=None, ge=1, le=10**12)
    """Ends the run after so many steps, if it has not ended before: of all workers together for a synchronous
    algorithm, else of one worker or group, each an update."""

    max_examples: Annotated[int | None, AfterValidator(has_one_size)] = Field(default=None, ge=1, le=10**15)
    """Ends the run with the step that reaches so many examples, if it has not ended before."""

    warmup: Annotated[WarmupSpec, shorthand("name", WarmupSpec, str), AfterValidator(ends_within)] = WarmupSpec()
    """How the learning rate begins: `none`, `constant`, `gradual` or `linear`."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Determines every random draw of the run: weights, order, augmentation, dropout."""

    device: Device = "auto"
    """Where the model computes; `auto`: a GPU where `workers.gpus` asks for one."""

    precision: Annotated[PrecisionName, AfterValidator(suits_device_and_algorithm)] = "float32"
    """In what the model computes. `tf32`: products and convolutions of a GPU round what goes into them to 10 bits of
    mantissa; `bfloat16`, `float16`: they take and give 16 bits, under torch's autocast. Parameters, gradients, sums and
    losses are float32 in each. The loss of `float16` is scaled, and an update whose gradient is infinite left out."""

    wire: Annotated[WireName, AfterValidator(sends_gradients)] = "float32"
    """In which numbers gradients travel. `bfloat16`: each virtual worker's, or each push, is rounded to 16 bits once,
    and takes half the bytes; sums, and all that comes back, are float32."""

    compress: Annotated[
        CompressSpec | None,
        BeforeValidator(named, json_schema_input_type=CompressSpec | Literal["sign", "int8"] | None),
        AfterValidator(can_be_compressed),
    ] = None
    """What of a gradient travels, while the rest is kept and added the next time: `{top_k: SHARE}`, `sign`, `int8` or
    `{powersgd: RANK}`; none: all of it."""

    transport: TransportName = "auto"
    """How tensors travel; `auto`: shared memory among those on one node, process groups between nodes. `object_store`:
    between workers and shards through Ray's; between workers as `auto`."""

    early_stop: Annotated[EarlyStopSpec | None, STOP_BY_METRIC, AfterValidator(judges_evaluations)] = None
    """Ends the run once its evaluations get no better; none: it goes on to its end."""

    callbacks: Callbacks = Field(default=(), max_length=20)
    """Code of your own that follows the run, each a `trainers.Callback` by `module:Class`, and may ask to stop or to
    evaluate."""

    on_divergence: Literal["warn", "fail"] = "warn"
    """What happens when the loss stays at chance, or above twice its start, for three epochs, for half of a run of less
    than six, or at the end: the log and the result say so, or the run fails."""

    predict: Literal["kept", "timed"] = "kept"
    """The result holds the rate against what a profile of the step predicts, where one is kept on this machine;
    `timed`: where none is kept, 20 steps of one worker are timed before the run begins."""

    report_every_s: float = Field(default=1.0, ge=0.05, le=3600)
    """Seconds between two reports of a worker."""

    @field_validator("algorithm")
    @classmethod
    def _algorithm_has_its_workers(cls, algorithm: AlgorithmConfig, info: ValidationInfo) -> AlgorithmConfig:
        workers = info.data.get("workers")
        if workers is not None:
            algorithm.check_workers(workers.count)
            algorithm.check_virtual(workers.count, workers.num_virtual)
            return algorithm.completed(workers.num_virtual)
        return algorithm

    @field_validator("elastic")
    @classmethod
    def _batch_can_follow(cls, elastic: ElasticSpec, info: ValidationInfo) -> ElasticSpec:
        workers, algorithm = info.data.get("workers"), info.data.get("algorithm")
        if elastic.mode == "fixed_batch" or workers is None or algorithm is None:
            return elastic
        if not isinstance(algorithm, SyncConfig) or algorithm.traits.uses_parameter_server:
            raise ValueError(
                "the batch follows the workers with algorithm: sync in the form all_reduce; use that, or fixed_batch"
            )
        if workers.num_virtual % workers.count:
            problem = f"{workers.num_virtual} virtual workers are not the same number for each of {workers.count}"
            raise ValueError(f"{problem}; set workers.virtual to a multiple of workers.count, or 0")
        return elastic

    @field_validator("scaling")
    @classmethod
    def _decay_is_defined(cls, scaling: ScalingSpec, info: ValidationInfo) -> ScalingSpec:
        optimizer = info.data.get("optimizer")
        parts = [] if optimizer is None else [optimizer, *map(optimizer.of_group, optimizer.groups)]
        if scaling.weight_decay == "exact" and any(part.lr * part.weight_decay >= 1 for part in parts):
            raise ValueError("the exact weight decay needs lr x weight_decay below 1; make one smaller, or use sqrt")
        return scaling

    @field_validator("device")
    @classmethod
    def _device_has_gpu(cls, device: Device, info: ValidationInfo) -> Device:
        workers = info.data.get("workers")
        if device == "cuda" and workers is not None and workers.gpus == 0:
            raise ValueError("device is cuda but no GPU is reserved; set workers.gpus to 1")
        return device

    @field_validator("transport")
    @classmethod
    def _transport_has_memory(cls, transport: TransportName, info: ValidationInfo) -> TransportName:
        workers, algorithm = info.data.get("workers"), info.data.get("algorithm")
        if workers is None or algorithm is None:
            return transport
        own_gpus = workers.gpus >= 1 and workers.count > 1
        if transport == "shared_memory" and own_gpus and algorithm.traits.uses_collectives:
            raise ValueError("workers with a GPU each share no memory; use transport: process_group or auto")
        if transport == "object_store" and not algorithm.traits.uses_parameter_server:
            raise ValueError("only shards are reached through the object store, and this algorithm has none; use auto")
        if transport == "object_store" and algorithm.traits.apart_s:
            raise ValueError("through the object store a group that is cut off (algorithm.apart_s) is lost; use auto")
        return transport

    @property
    def most_workers(self) -> int:
        """The largest number of workers that the run may be scaled to."""
        if self.algorithm.traits.is_synchronous and not self.scales_batch:
            return min(self.workers.max or self.workers.num_virtual, self.workers.num_virtual)
        return self.workers.max or 2 * self.workers.count

    def with_workers(self, count: int) -> Self:
        """The same run with another number of workers.

        A synchronous run keeps its virtual workers, and with them its result, unless its batch follows the workers.

        Raises:
            SpecRejected: The run cannot have so many workers, or so few.
        """
        least, most = self.workers.min, self.most_workers
        if not least <= count <= most:
            said = f"workers: the run can have {least} to {most} of them, not {count}"
            is_virtual = count > most == self.workers.num_virtual and not self.scales_batch
            if is_virtual and self.algorithm.traits.is_synchronous:
                raise SpecRejected(f"{said}; it has {most} virtual workers: for more, submit it with workers.virtual")
            raise SpecRejected(f"{said}; see workers.{'max' if count > most else 'min'}")
        limits = {"virtual": self.virtual_for(count)} if self.algorithm.traits.is_synchronous else {"max": most}
        if self.scales_batch:
            limits |= {"max": most}
        workers = self.workers.model_dump() | limits | {"count": count}
        batch = self.batch.model_dump() | {"base": self.base_batch}
        try:
            return type(self).model_validate(self.model_dump() | {"workers": workers, "batch": batch})
        except ValidationError as error:
            raise SpecRejected("; ".join(one.in_words for one in field_errors(error, type(self)))) from None

    @property
    def scales_batch(self) -> bool:
        """Whether the batch follows the number of workers."""
        return self.elastic.mode == "scale_batch"

    def virtual_for(self, count: int) -> int:
        """Virtual workers of a synchronous run while `count` workers train it."""
        workers = self.workers
        return count * (workers.num_virtual // workers.count) if self.scales_batch else workers.num_virtual

    @property
    def base_batch(self) -> int | None:
        """The batch from which learning rate and weight decay are scaled; None if they are not scaled.

        If the batch follows the workers and no base is given, it is the batch of the run as submitted.
        """
        return self.batch.base or (self.update_batch if self.scales_batch else None)

    def following(self, num_virtual: int) -> Self:
        """The same run while it has `num_virtual` virtual workers."""
        if num_virtual == self.workers.num_virtual:
            return self
        workers = self.workers.model_copy(update={"virtual": num_virtual})
        batch = self.batch.model_copy(update={"base": self.base_batch})
        return self.model_copy(update={"workers": workers, "batch": batch})

    @property
    def global_batch(self) -> int:
        """Examples per synchronous step, kn."""
        return self.workers.num_virtual * self.batch.per_worker

    @property
    def update_batch(self) -> int:
        """Examples per update, which the scaling rules depend on.

        kn for a synchronous algorithm, Kn with backup workers, gn where a group of g workers averages its gradients. It
        is one worker's minibatch for an asynchronous algorithm, since a push adds up the gradients of its minibatches
        without averaging them, and where each worker makes steps of its own before the parameters are averaged.
        """
        return self.algorithm.traits.minibatches_per_update(self.workers.num_virtual) * self.batch.per_worker

    @property
    def batch_scaling(self) -> BatchScaling:
        """How learning rate and weight decay follow the batch of this run."""
        return BatchScaling(self.optimizer, self.scaling, self.update_batch, self.batch.base)

    @property
    def warms_up(self) -> bool:
        """Whether there is a warm-up: there is none where scaling does not raise the rate."""
        return warms_up(self.warmup, self.batch_scaling)

    def extent(self, num_examples: int) -> Extent:
        """How much is trained with `num_examples` training examples per epoch."""
        order = Order(num_examples, self.batch.per_worker, self.workers.num_virtual, self.seed)
        return order.extent(self.epochs, self.minibatches_per_step, self.max_steps, self.max_examples)

    @property
    def minibatches_per_step(self) -> int:
        """Of all workers of a synchronous algorithm, of those whose mean is an update of an asynchronous one."""
        num_virtual, traits = self.workers.num_virtual, self.algorithm.traits
        return num_virtual if traits.is_synchronous else traits.minibatches_per_update(num_virtual)

    def learning_rate(self, num_examples: int) -> Schedule:
        """The learning rate over a run with `num_examples` training examples per epoch."""
        return build_schedule(self.schedule, self.warmup, self.batch_scaling, self.run_length(num_examples))

    def run_length(self, num_examples: int) -> RunLength:
        """How long the run is, as schedule and warm-up measure it.

        Raises SpecRejected where the warm-up does not end within it.
        """
        return run_length(self.warmup, self.batch_scaling, num_examples, self.extent(num_examples).examples)

    def resolved(self, base: Path) -> Self:
        """The same spec with every relative path resolved against the folder `base`."""
        return self.model_copy(update=with_paths(self, base))
