"""TrainSpec: the one description of a run. Frozen, every field with its unit and bound; imports no torch.

A spec is read from YAML, JSON or Python. Wherever a section has a `name` (`algorithm`, `optimizer`, `schedule`,
`model`, `data`), the name alone may stand for it: `algorithm: downpour`. `workers: 4` and `batch: 32` likewise.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from trainers.algorithms import AnyAlgorithm
from trainers.algorithms.base import AlgorithmConfig
from trainers.algorithms.sync import SyncConfig
from trainers.data.names import dataset_names
from trainers.models.names import model_names

Device = Literal["auto", "cpu", "cuda"]
TransportName = Literal["auto", "shared_memory", "process_group"]


def shorthand(field: str, form: Any, kind: Any = str, default: str | None = None) -> BeforeValidator:
    """A scalar stands for a section in which only `field` is given; a section without its name is the default one.

    form, kind: the types of the section and of the scalar, for the JSON Schema.
    """

    def spell_out(value: Any) -> Any:
        if isinstance(value, dict):
            return {field: default, **value} if default and field not in value else value
        return value if isinstance(value, BaseModel) else {field: value}

    return BeforeValidator(spell_out, json_schema_input_type=form | kind)


def known(names: tuple[str, ...], value: str, user_means: str) -> str:
    """The name, if it stands for something; else ValueError with what comes near."""
    if value in names or ":" in value:
        return value
    near = ", ".join(difflib.get_close_matches(value, names)) or ", ".join(names[:8])
    raise ValueError(f"there is no {value!r}; did you mean {near}? {user_means} is named module:function")


class Section(BaseModel):
    """Root of all parts of a spec: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


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
    """`lenet5`, `convnet`, `mlp`, any torchvision classification model (`resnet18`, `alexnet` ...), or a function of
    your own as `module:function` that takes `num_classes` and `in_channels` and returns a torch module."""

    weights: str | None = None
    """A safetensors file with initial weights; parameters whose shape differs (a last layer) keep their own start."""

    kwargs: dict[str, bool | int | float | str] = {}
    """Arguments passed on to the model's constructor."""

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

    @property
    def num_virtual(self) -> int:
        """V with its default filled in."""
        return self.virtual or self.count


class BatchSpec(Section):
    """Examples a step."""

    per_worker: int = Field(default=32, ge=1, le=1_000_000)
    """n: examples in the minibatch of one (virtual) worker."""


class SgdSpec(Section):
    """w <- w - lr g."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0, le=1000)
    """Learning rate."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss: g <- g + weight_decay w."""


class MomentumSpec(Section):
    """u <- momentum u + g, w <- w - lr u (paper 4, equation 9)."""

    name: Literal["momentum"] = "momentum"
    lr: float = Field(default=0.02, gt=0, le=1000)
    """Learning rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss."""


class NesterovSpec(Section):
    """u <- momentum u + g, w <- w - lr (g + momentum u)."""

    name: Literal["nesterov"] = "nesterov"
    lr: float = Field(default=0.05, gt=0, le=1000)
    """Learning rate."""
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update that is kept."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss."""


class RmspropSpec(Section):
    """s <- decay s + (1 - decay) g^2, w <- w - lr g / (sqrt(s) + epsilon), PyTorch's form."""

    name: Literal["rmsprop"] = "rmsprop"
    lr: float = Field(default=0.001, gt=0, le=1000)
    """Learning rate."""
    decay: float = Field(default=0.99, ge=0, lt=1)
    """Share of the mean square that is kept."""
    epsilon: float = Field(default=1e-8, gt=0, le=10)
    """Added to the root."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss."""


class AdagradSpec(Section):
    """s <- s + g^2, w <- w - lr g / (sqrt(s) + epsilon) (Duchi et al. 2011; on the server in Dean et al. 2012)."""

    name: Literal["adagrad"] = "adagrad"
    lr: float = Field(default=0.01, gt=0, le=1000)
    """Learning rate."""
    epsilon: float = Field(default=1e-10, gt=0, le=10)
    """Added to the root."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """Coefficient of the L2 term, which is part of the loss."""


AnyOptimizer = Annotated[SgdSpec | MomentumSpec | NesterovSpec | RmspropSpec | AdagradSpec, Field(discriminator="name")]


class ConstantSchedule(Section):
    """The learning rate stays what it is."""

    name: Literal["constant"] = "constant"


class StepSchedule(Section):
    """The learning rate is multiplied by `factor` at the end of each of the given epochs."""

    name: Literal["step"] = "step"
    epochs: tuple[float, ...] = (30, 60, 80)
    """When, in epochs from the start."""
    factor: float = Field(default=0.1, gt=0, le=1)
    """By how much."""


class CosineSchedule(Section):
    """Half a cosine from the learning rate down to `final` times it over the run."""

    name: Literal["cosine"] = "cosine"
    final: float = Field(default=0.0, ge=0, le=1)
    """What is left at the end, as a share of the first rate."""


AnySchedule = Annotated[ConstantSchedule | StepSchedule | CosineSchedule, Field(discriminator="name")]


class ParameterServerSpec(Section):
    """The shards that hold the parameters, for the algorithms that have them."""

    shards: int = Field(default=2, ge=1, le=1024)
    """S: shards (Ray actors), each with a slice of the parameters."""

    placement: Literal["balanced", "round_robin"] = "balanced"
    """`balanced`: equal bytes a shard, cutting through variables; `round_robin`: whole variables in turn, as in
    TensorFlow (paper 3, section IV.C)."""

    cpus: float = Field(default=0, ge=0, le=1024)
    """Logical CPUs that Ray reserves for each shard."""


class EvaluateSpec(Section):
    """When the test set is evaluated. Asynchronous workers do not stop for it."""

    every_epochs: int = Field(default=1, ge=0)
    """Epochs between evaluations; 0: only at the end of the run."""

    every_s: float | None = Field(default=None, gt=0)
    """Seconds between further evaluations; none: no further ones."""

    batch: int = Field(default=500, ge=1, le=100_000)
    """Examples a forward pass."""


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

    data: Annotated[DataSpec, shorthand("name", DataSpec, str)] = DataSpec()
    """On which examples."""

    batch: Annotated[BatchSpec, shorthand("per_worker", BatchSpec, int)] = BatchSpec()
    """Examples a step."""

    optimizer: Annotated[AnyOptimizer, shorthand("name", AnyOptimizer, str, default="momentum")] = MomentumSpec()
    """The update rule and its learning rate."""

    schedule: Annotated[AnySchedule, shorthand("name", AnySchedule, str, default="constant")] = ConstantSchedule()
    """How the learning rate moves with the examples seen."""

    ps: Annotated[ParameterServerSpec, shorthand("shards", ParameterServerSpec, int)] = ParameterServerSpec()
    """The parameter server's shards."""

    evaluate: EvaluateSpec = EvaluateSpec()
    """When to evaluate."""

    checkpoint: CheckpointSpec = CheckpointSpec()
    """When to write a checkpoint, and which to start from."""

    epochs: int = Field(default=5, ge=1, le=1_000_000)
    """Passes over the training set."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Every random draw of the run comes from it: weights, order, augmentation, dropout."""

    device: Device = "auto"
    """Where the model computes; `auto`: a GPU where `workers.gpus` asks for one."""

    transport: TransportName = "auto"
    """How tensors travel; `auto`: shared memory where all workers are on one node, else process groups."""

    report_every_s: float = Field(default=0.5, ge=0.05, le=3600)
    """Seconds between two reports of a worker."""

    UNIONS: ClassVar[frozenset[str]] = frozenset({"algorithm", "optimizer", "schedule"})

    @field_validator("algorithm")
    @classmethod
    def _algorithm_has_its_workers(cls, algorithm: AlgorithmConfig, info: ValidationInfo) -> AlgorithmConfig:
        workers = info.data.get("workers")
        if workers is not None:
            algorithm.check_workers(workers.count)
        return algorithm

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
        return transport

    @property
    def global_batch(self) -> int:
        """Examples a synchronous step, kn."""
        return self.workers.num_virtual * self.batch.per_worker

    def resolved(self, base: Path) -> Self:
        """The same spec with every relative path taken from the folder `base`."""

        def absolute(path: str | None) -> str | None:
            return None if path is None else str((base / Path(path).expanduser()).resolve())

        return self.model_copy(
            update={
                "code": absolute(self.code),
                "data": self.data.model_copy(update={"root": absolute(self.data.root)}),
                "model": self.model.model_copy(update={"weights": absolute(self.model.weights)}),
                "checkpoint": self.checkpoint.model_copy(update={"resume": absolute(self.checkpoint.resume)}),
            }
        )


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


def all_field_names() -> set[str]:
    """The names of all fields of all sections."""
    schema = TrainSpec.model_json_schema()
    return {name for part in (schema, *schema["$defs"].values()) for name in part.get("properties", {})}
