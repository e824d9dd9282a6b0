"""TrainSpec: the one description of a run. Frozen, every field with its unit and bound; imports no torch.

A spec is read from YAML, JSON or Python. Wherever a section has a `name` (`algorithm`, `optimizer`, `schedule`,
`model`, `data`), the name alone may stand for it: `algorithm: downpour`. `workers: 4` and `batch: 32` likewise.
"""

import difflib
import functools
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from trainers.algorithms import AnyAlgorithm
from trainers.algorithms.base import AlgorithmConfig
from trainers.algorithms.sync import SyncConfig
from trainers.data.names import dataset_names
from trainers.errors import SpecRejected
from trainers.models.names import model_names
from trainers.spec_base import Section, known, shorthand
from trainers.spec_optimizer import (
    AdagradSpec,
    AnyOptimizer,
    AnySchedule,
    ConstantSchedule,
    CosineSchedule,
    Exempt,
    KrizhevskySchedule,
    MomentumSpec,
    NesterovSpec,
    PolynomialSchedule,
    RmspropSpec,
    ScalingSpec,
    SgdSpec,
    StepSchedule,
    WarmupSpec,
)

__all__ = [
    "AdagradSpec", "AnyOptimizer", "AnySchedule", "BatchSpec", "CheckpointSpec", "ConstantSchedule", "CosineSchedule",
    "DataSpec", "Device", "ElasticSpec", "EvaluateSpec", "Exempt", "FieldError", "KrizhevskySchedule", "LossName",
    "ModelSpec",
    "MomentumSpec", "NesterovSpec", "ParameterServerSpec", "PolynomialSchedule", "RmspropSpec", "ScalingSpec",
    "Section", "SgdSpec", "StepSchedule", "TrainSpec", "TransportName", "WarmupSpec", "WorkersSpec", "all_field_names",
    "field_errors",
]  # fmt: skip

Device = Literal["auto", "cpu", "cuda"]
LossName = Literal["cross_entropy", "logistic"]
TransportName = Literal["auto", "shared_memory", "process_group", "object_store"]


class DataSpec(Section):
    """Which examples, from where, and how they are varied while training."""

    name: str = "digits"
    """A dataset by name (`digits`, `mnist`, `fashion_mnist`, `cifar10`, `cifar100`, `imagenet`, `image_folder`) or a
    function of your own as `module:function`."""

    root: str = "data"
    """The folder in torchvision's layout; a relative one is taken from where the job is submitted."""

    download: bool = False
    """Whether a dataset that is not in `root` may be fetched from its home on the network."""

    random_crop: int = Field(default=0, ge=0, le=256)
    """Pixels of zero padding around an image before a crop of its own size is drawn; 0: no crop."""

    horizontal_flip: bool = False
    """Whether half of the images are mirrored, drawn anew for each example and epoch."""

    random_resized_crop: int = Field(default=0, ge=0, le=2048)
    """Side in pixels of a crop of random area (8 to 100 %) and aspect (3/4 to 4/3), resized; 0: none. Evaluation
    resizes to 256/224 of it and takes the centre."""

    loader_processes: int = Field(default=2, ge=0, le=64)
    """DataLoader processes a worker, for sets that do not fit in memory."""

    memory_limit_bytes: int = Field(default=4 * 1024**3, ge=0)
    """Largest set, in bytes as uint8, that is held in the node's shared memory; larger ones are streamed."""

    limit: int | None = Field(default=None, ge=1)
    """Use only the first so many training examples; none: all of them."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known(dataset_names(), name, "a dataset of your own")


class ModelSpec(Section):
    """What is trained."""

    name: str = "lenet5"
    """`lenet5`, `convnet`, `mlp`, `alexnet_one_tower`, any torchvision classification model (`resnet18`, `alexnet`
    ...), or a function of your own as `module:function` that takes `num_classes` and `in_channels` and returns a torch
    module."""

    weights: str | None = None
    """A safetensors file with initial weights; parameters whose shape differs (a last layer) keep their own start."""

    kwargs: dict[str, bool | int | float | str] = Field(default={})
    """Arguments passed on to the model's constructor."""

    init: Literal["default", "he"] = "default"
    """`he`: convolutions after He et al. 2015, the last layer from a Gaussian with 0.01, their biases 0 (paper 4,
    section 5.1); `default`: as the model's own constructor has it."""

    zero_gamma: bool = False
    """Start with gamma = 0 in the last batch norm of each residual block (paper 4, section 5.1); for models of
    torchvision's ResNet blocks."""

    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    """How images and convolutions lie in memory. `channels_last` is faster on a CPU; the numbers agree to float
    tolerance. Checkpoints do not depend on it."""

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str) -> str:
        return known(model_names(), name, "a model of your own")


class WorkersSpec(Section):
    """How many processes compute, and over how many virtual workers the mathematics is defined."""

    count: int = Field(default=2, ge=1, le=4096)
    """Physical workers (Ray actors)."""

    min: int = Field(default=1, ge=1, le=4096)
    """With fewer than these a run does not go on: it waits until there is room for more."""

    max: int = Field(default=0, ge=0, le=4096)
    """The most that the run may be scaled to; 0: as many as a synchronous algorithm has virtual workers, else twice
    `count`."""

    virtual: int = Field(default=0, ge=0, le=65536)
    """Virtual workers V: the minibatch of a synchronous step is V times `batch.per_worker`, whatever `count` is.
    0: as many as `count`."""

    cpus: float = Field(default=1, ge=0, le=1024)
    """Logical CPUs that Ray reserves for each worker."""

    gpus: float = Field(default=0, ge=0, le=64)
    """GPUs that Ray reserves for each worker."""

    threads: int = Field(default=1, ge=1, le=256)
    """Threads of torch in each worker. A run gives the same bits only with the same number."""

    @field_validator("virtual")
    @classmethod
    def _holds_count(cls, virtual: int, info: ValidationInfo) -> int:
        count = info.data.get("count", 1)
        if virtual and virtual < count:
            raise ValueError(f"{count} workers cannot share {virtual} virtual workers; use at least {count}, or 0")
        return virtual

    @field_validator("min")
    @classmethod
    def _begins_with_enough(cls, least: int, info: ValidationInfo) -> int:
        count = info.data.get("count", least)
        if least > count:
            raise ValueError(f"the run begins with {count} workers; use at most that")
        return least

    @field_validator("max")
    @classmethod
    def _begins_with_few(cls, most: int, info: ValidationInfo) -> int:
        count = info.data.get("count", 1)
        if most and most < count:
            raise ValueError(f"the run begins with {count} workers; use at least that, or 0")
        return most

    @property
    def num_virtual(self) -> int:
        """V with its default filled in."""
        return self.virtual or self.count


class BatchSpec(Section):
    """Examples a step."""

    per_worker: int = Field(default=32, ge=1, le=1_000_000)
    """n: examples in the minibatch of one (virtual) worker."""

    base: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """The batch, in examples, to which `optimizer.lr` and `weight_decay` belong; `scaling` takes them from there to
    the batch of this run. null: they are taken as they are."""


class ParameterServerSpec(Section):
    """The shards that hold the parameters, for the algorithms that have them."""

    shards: int = Field(default=2, ge=1, le=1024)
    """S: shards (Ray actors), each with a slice of the parameters."""

    placement: Literal["balanced", "round_robin"] = "balanced"
    """`balanced`: equal bytes a shard, cutting through variables; `round_robin`: whole variables in turn, as in
    TensorFlow (paper 3, section IV.C)."""

    location: Literal["with_workers", "own"] = "with_workers"
    """`with_workers`: on the workers' nodes in turn, but not on the one where checkpoints are written, if there are
    others; `own`: on nodes without workers (paper 3, section IV.C)."""

    cpus: float = Field(default=0, ge=0, le=1024)
    """Logical CPUs that Ray reserves for each shard."""

    replicas: Literal[1, 2] = 2
    """Copies of what a shard holds. 2: beside the process, memory of its node that outlives it, with a journal: a shard
    whose process dies comes back without losing an acknowledged update; and over process groups a second process on
    another node, which serves when the shard's node is lost. 1: where every push is an update of its own it comes back
    from its last snapshot and the pushes that workers still hold, and the run says how many updates were lost; a
    synchronous run goes back to its last checkpoint, and so does any that loses the node."""


class ElasticSpec(Section):
    """How the run follows what the cluster can give."""

    mode: Literal["fixed_batch", "scale_batch"] = "fixed_batch"
    """`fixed_batch`: the virtual workers stay as they are, and with them the result, whoever computes it.
    `scale_batch`: each worker keeps its number of virtual workers, so the batch follows the number of workers, and
    learning rate and weight decay follow the batch by `scaling`. With the algorithm `sync` in the form `all_reduce`."""

    ramp_epochs: float = Field(default=1.0, ge=0, le=1000)
    """`scale_batch`: epochs over which the learning rate rises when the batch has grown; a smaller batch has its rate
    at once."""

    follow_cluster: bool = False
    """Train with as many workers as there is room for, from `workers.min` to `workers.max`, instead of `workers.count`
    whenever the cluster has room for so many."""


class EvaluateSpec(Section):
    """When the test set is evaluated. Asynchronous workers do not stop for it."""

    every_epochs: int = Field(default=1, ge=0)
    """Epochs between evaluations; 0: only at the end of the run."""

    every_s: float | None = Field(default=None, gt=0)
    """Seconds between further evaluations; none: no further ones."""

    batch: int = Field(default=500, ge=1, le=100_000)
    """Examples a forward pass."""

    recompute_statistics: int = Field(default=0, ge=0, le=100_000)
    """Training minibatches over which batch-norm statistics are computed anew before an evaluation (paper 4, figure
    4); 0: the running averages, their mean over virtual workers."""


class CheckpointSpec(Section):
    """When the run can be taken up again from."""

    every_epochs: int = Field(default=1, ge=0)
    """Epochs between checkpoints; 0: none but the one of a clean stop."""

    keep_last: int = Field(default=2, ge=1)
    """How many are kept."""

    resume: str | None = None
    """A checkpoint's folder to start from."""


class TrainSpec(Section):
    """One training run: algorithm, model, data, workers, and how the learning rate moves."""

    code: str | None = None
    """A folder with modules of your own for `module:function`; it travels to the workers and stands behind
    everything else on their path."""

    workers: Annotated[WorkersSpec, shorthand("count", WorkersSpec, int)] = WorkersSpec()
    """Who computes."""

    algorithm: Annotated[AnyAlgorithm, shorthand("name", AnyAlgorithm, str, default="sync")] = SyncConfig()
    """Which parallel SGD, by name alone (`algorithm: downpour`) or with its options."""

    model: Annotated[ModelSpec, shorthand("name", ModelSpec, str)] = ModelSpec()
    """What is trained."""

    loss: LossName = "cross_entropy"
    """`cross_entropy` of a softmax, or `logistic`: one independent logistic unit a class (paper 1, section 5)."""

    data: Annotated[DataSpec, shorthand("name", DataSpec, str)] = DataSpec()
    """On which examples."""

    batch: Annotated[BatchSpec, shorthand("per_worker", BatchSpec, int)] = BatchSpec()
    """Examples a step."""

    optimizer: Annotated[AnyOptimizer, shorthand("name", AnyOptimizer, str, default="momentum")] = MomentumSpec()
    """The update rule and its learning rate."""

    scaling: Annotated[ScalingSpec, shorthand("name", ScalingSpec, str)] = ScalingSpec()
    """How learning rate and weight decay follow the batch: `none`, `sqrt` or `linear`."""

    schedule: Annotated[AnySchedule, shorthand("name", AnySchedule, str, default="constant")] = ConstantSchedule()
    """How the learning rate moves with the examples seen."""

    ps: Annotated[ParameterServerSpec, shorthand("shards", ParameterServerSpec, int)] = ParameterServerSpec()
    """The parameter server's shards."""

    elastic: ElasticSpec = ElasticSpec()
    """How many workers train as machines come and go."""

    evaluate: EvaluateSpec = EvaluateSpec()
    """When to evaluate."""

    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to write a checkpoint, and which to start from."""

    epochs: int = Field(default=5, ge=1, le=1_000_000)
    """Passes over the training set."""

    warmup: Annotated[WarmupSpec, shorthand("name", WarmupSpec, str)] = WarmupSpec()
    """How the learning rate begins: `none`, `constant` or `gradual`."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Every random draw of the run comes from it: weights, order, augmentation, dropout."""

    device: Device = "auto"
    """Where the model computes; `auto`: a GPU where `workers.gpus` asks for one."""

    transport: TransportName = "auto"
    """How tensors travel; `auto`: shared memory among those on one node, process groups between nodes. `object_store`:
    between workers and shards through Ray's; between workers as `auto`."""

    report_every_s: float = Field(default=1.0, ge=0.05, le=3600)
    """Seconds between two reports of a worker."""

    UNIONS: ClassVar[frozenset[str]] = frozenset({"algorithm", "optimizer", "schedule"})

    @field_validator("algorithm")
    @classmethod
    def _algorithm_has_its_workers(cls, algorithm: AlgorithmConfig, info: ValidationInfo) -> AlgorithmConfig:
        workers = info.data.get("workers")
        if workers is not None:
            algorithm.check_workers(workers.count)
            algorithm.check_virtual(workers.count, workers.num_virtual)
        return algorithm

    @field_validator("elastic")
    @classmethod
    def _batch_can_follow(cls, elastic: ElasticSpec, info: ValidationInfo) -> ElasticSpec:
        workers, algorithm = info.data.get("workers"), info.data.get("algorithm")
        if elastic.mode == "fixed_batch" or workers is None or algorithm is None:
            return elastic
        if not isinstance(algorithm, SyncConfig) or algorithm.uses_parameter_server:
            raise ValueError(
                "the batch follows the workers with algorithm: sync in the form all_reduce; use that, or fixed_batch"
            )
        if workers.num_virtual % workers.count:
            told = f"{workers.num_virtual} virtual workers are not the same number for each of {workers.count}"
            raise ValueError(f"{told}; set workers.virtual to a multiple of workers.count, or 0")
        return elastic

    @field_validator("scaling")
    @classmethod
    def _decay_is_defined(cls, scaling: ScalingSpec, info: ValidationInfo) -> ScalingSpec:
        optimizer = info.data.get("optimizer")
        if scaling.weight_decay == "exact" and optimizer is not None and optimizer.lr * optimizer.weight_decay >= 1:
            raise ValueError("the exact weight decay needs lr x weight_decay below 1; make one smaller, or use sqrt")
        return scaling

    @field_validator("warmup")
    @classmethod
    def _warmup_ends(cls, warmup: WarmupSpec, info: ValidationInfo) -> WarmupSpec:
        epochs = info.data.get("epochs")
        if warmup.name != "none" and epochs is not None and warmup.epochs >= epochs:
            told = f"a warm-up of {warmup.epochs:g} epochs does not end within a run of {epochs}"
            raise ValueError(f"{told}; set warmup.epochs below that")
        return warmup

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
        if transport == "shared_memory" and workers.gpus and algorithm.uses_collectives:
            raise ValueError("shared memory reduces on the CPU; with GPUs use transport: process_group or auto")
        if transport == "object_store" and not algorithm.uses_parameter_server:
            raise ValueError("only shards are reached through the object store, and this algorithm has none; use auto")
        return transport

    @property
    def most_workers(self) -> int:
        """How many the run may be scaled to."""
        if self.algorithm.is_synchronous and not self.scales_batch:
            return min(self.workers.max or self.workers.num_virtual, self.workers.num_virtual)
        return self.workers.max or 2 * self.workers.count

    def with_workers(self, count: int) -> Self:
        """The same run with another number of workers: a synchronous one keeps its virtual workers, and so its result,
        unless its batch is to follow.

        Raises:
            SpecRejected: It cannot have so many, or so few.
        """
        least, most = self.workers.min, self.most_workers
        if not least <= count <= most:
            raise SpecRejected(f"workers: the run can have {least} to {most} of them, not {count}; see workers.max")
        kept = {"virtual": self.virtual_for(count)} if self.algorithm.is_synchronous else {"max": most}
        if self.scales_batch:
            kept |= {"max": most}
        workers = self.workers.model_dump() | kept | {"count": count}
        batch = self.batch.model_dump() | {"base": self.base_batch}
        try:
            return type(self).model_validate(self.model_dump() | {"workers": workers, "batch": batch})
        except ValidationError as error:
            raise SpecRejected("; ".join(f"{e.pointer}: {e.message}" for e in field_errors(error))) from None

    @property
    def scales_batch(self) -> bool:
        """Whether the batch follows the number of workers."""
        return self.elastic.mode == "scale_batch"

    def virtual_for(self, count: int) -> int:
        """Virtual workers while so many workers train a synchronous run."""
        workers = self.workers
        return count * (workers.num_virtual // workers.count) if self.scales_batch else workers.num_virtual

    @property
    def base_batch(self) -> int | None:
        """The batch from which learning rate and weight decay are scaled, if they are: where the batch follows the
        workers and none is named, that of the run as it was submitted."""
        return self.batch.base or (self.update_batch if self.scales_batch else None)

    def following(self, num_virtual: int) -> Self:
        """The same run while it has so many virtual workers."""
        if num_virtual == self.workers.num_virtual:
            return self
        workers = self.workers.model_copy(update={"virtual": num_virtual})
        batch = self.batch.model_copy(update={"base": self.base_batch})
        return self.model_copy(update={"workers": workers, "batch": batch})

    @property
    def global_batch(self) -> int:
        """Examples a synchronous step, kn."""
        return self.workers.num_virtual * self.batch.per_worker

    @property
    def update_batch(self) -> int:
        """Examples in one update, to which the scaling rules look: kn for a synchronous algorithm, Kn with backup
        workers; one worker's minibatch for an asynchronous one, whose push adds up a gradient a minibatch and averages
        none."""
        return max(1, self.algorithm.quorum(self.workers.num_virtual)) * self.batch.per_worker

    def resolved(self, base: Path) -> Self:
        """The same spec with every relative path taken from the folder `base`."""
        update: dict[str, Any] = {}
        for section, *field in PATH_FIELDS:
            given = getattr(self, section)
            if not field:
                update[section] = absolute(given, base)
            elif (path := getattr(given, field[0])) is not None:
                update[section] = given.model_copy(update={field[0]: absolute(path, base)})
        return self.model_copy(update=update)


PATH_FIELDS = (("code",), ("data", "root"), ("model", "weights"), ("checkpoint", "resume"))
"""The fields that hold a path."""


def absolute(path: str | None, base: Path) -> str | None:
    """A path taken from the folder `base`; where `..` leads through a link, only the file system knows."""
    if path is None:
        return None
    joined = os.path.join(base, os.path.expanduser(path))
    return os.path.realpath(joined) if ".." in joined.split(os.sep) else os.path.normpath(joined)


class FieldError(BaseModel):
    """One thing that is wrong with a spec."""

    pointer: str
    """JSON pointer (RFC 6901) of the field."""

    message: str
    """What to change."""


def field_errors(error: ValidationError) -> list[FieldError]:
    """One line a field, with pointers into what the user wrote (the tags of unions are taken out)."""

    def pointer(loc: tuple[Any, ...]) -> str:
        parts = [part for i, part in enumerate(loc) if not (i and loc[i - 1] in TrainSpec.UNIONS and len(loc) > i + 1)]
        return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)

    def message(item: Any) -> str:
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(str(item["loc"][-1]), sorted(all_field_names()), n=3)
            return "there is no such field" + (f"; did you mean {', '.join(near)}?" if near else "")
        return str(item["msg"]).removeprefix("Value error, ")

    return [FieldError(pointer=pointer(e["loc"]), message=message(e)) for e in error.errors(include_url=False)]


@functools.cache  # a spec with an unknown field asks for it, and anybody may send one
def all_field_names() -> set[str]:
    """The names of all fields of all sections."""
    schema = TrainSpec.model_json_schema()
    return {name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})}
