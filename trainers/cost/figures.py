"""The counted and timed costs of layers, as plain numbers. Imports no torch, so that a command line can show them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ConfigDict, Field, PositiveInt, ValidationError

from trainers import user_code
from trainers.algorithms.divided import Divided
from trainers.data.names import IMAGES
from trainers.documented import Documented
from trainers.errors import SpecRejected
from trainers.spec import DataSpec, Device, ModelSpec, TrainSpec, field_errors
from trainers.spec.memory import FLOAT_BYTES, held_by_a_worker, vector_bytes

Kind = Literal["convolution", "fully connected", "attention", "normalisation", "other"]
LayerName = Literal["convolution", "fully_connected"]


class Figures(Documented):
    """Base class of the values in this file: frozen, with documented fields."""

    model_config = ConfigDict(frozen=True)


F = TypeVar("F", bound=Figures)


def read_figures(kind: type[F], path: Path, option: str, what: str, remedy: str = "") -> F:
    """Figures that were kept as JSON.

    Args:
        option: That named the file.
        what: It should be.
        remedy: What makes one.

    Raises:
        SpecRejected: The file is none, with the field.
    """
    otherwise = f"; {remedy}" if remedy else ""
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SpecRejected(f"{option}: {path} cannot be read: {error.strerror}{otherwise}") from None
    except ValidationError as error:
        wrong = field_errors(error, kind)[0].in_words
        raise SpecRejected(f"{option}: {path} is no {what}: {wrong}{otherwise}") from None


class Images(Figures):
    """The input of a model and the number of classes that it distinguishes."""

    shape: tuple[int, int, int]
    """C, H, W."""
    classes: int


def images_of(model: ModelSpec, data: DataSpec | None = None) -> Images | None:
    """The images of a dataset that is known by name; without a dataset, those usual for the model.

    None if their size is known only when the dataset is read.
    """
    if data is None:
        small = (
            IMAGES["mnist"] if model.name in ("lenet5", "convnet", "convnet_two_columns", "mlp") else IMAGES["imagenet"]
        )
        return Images(shape=small[:3], classes=small[3])
    if data.name not in IMAGES:
        return None
    channels, height, width, classes = IMAGES[data.name]
    side = data.random_resized_crop
    return Images(shape=(channels, side or height, side or width), classes=classes)


class CostShare(Figures):
    """The fraction of a model that a layer, or all layers of a kind, account for; 0 to 1."""

    computation: float
    """Fraction of the FLOPs, forward and backward."""
    parameters: float
    activities: float


class ImageCost(Figures):
    """The cost of a part of a model for one example."""

    forward_flops: int = 0
    """Multiplications and additions of convolutions and matrix products; other operations are not counted."""
    backward_flops: int = 0
    """Likewise, for the gradients with respect to the weights and, except in the first layer, the layer's input."""
    parameters: int = 0
    activities: int = 0
    """Elements of its output."""

    def __add__(self, other: "ImageCost") -> "ImageCost":
        return ImageCost(**{name: getattr(self, name) + getattr(other, name) for name in ImageCost.model_fields})

    def share_of(self, total: "ImageCost") -> CostShare:
        """The fraction of `total` that this is; 0 where that is 0."""
        return CostShare(
            computation=(self.forward_flops + self.backward_flops) / max(1, total.forward_flops + total.backward_flops),
            parameters=self.parameters / max(1, total.parameters),
            activities=self.activities / max(1, total.activities),
        )


class LayerCost(Figures):
    """One layer of a model."""

    name: str
    """As in `named_modules`; empty for parameters that belong to the model itself and not to a layer."""
    kind: Kind
    cost: ImageCost
    share: CostShare


class NeededMemory(Figures):
    """What a worker of a spec needs for the model, beside its data and the process itself, in bytes."""

    vectors: int
    """What `held` names, at least, and frozen parameters."""
    held: str
    activations: int
    """What the layers of a minibatch put out, with `spatial` a worker's rows of the convolutions; with
    `model.checkpoint_activations` not all of it is kept at once."""


class ModelCost(Figures):
    """A model, layer by layer in the order in which they are first called, and by kinds of layer."""

    model: str
    example: str
    """What is counted for, in words."""
    images: Images | None
    """Likewise; null where the data were read for it."""
    layers: tuple[LayerCost, ...]
    kinds: dict[Kind, CostShare]
    """Fractions of all layers of a kind together (paper 1, section 3)."""
    whole: ImageCost
    variables: tuple[int, ...] = ()
    """Elements of each parameter tensor, in the model's order."""
    divided: Divided | None = None
    """Of these, what workers of the spec share out; null: nothing."""
    memory: NeededMemory | None = None
    """Of a worker, where the model is that of a spec."""


def model_cost(
    model: str,
    example: str,
    images: Images | None,
    counted: list[tuple[str, Kind, ImageCost]],
    variables: Iterable[int] = (),
    divided: Divided | None = None,
) -> ModelCost:
    """The cost of a model, from the counted cost of its layers, the elements of its parameter tensors, and what of them
    workers share out."""
    total, kinds = ImageCost(), dict[Kind, ImageCost]()
    for _, kind, cost in counted:
        total, kinds[kind] = total + cost, kinds.get(kind, ImageCost()) + cost
    layers = (LayerCost(name=name, kind=kind, cost=cost, share=cost.share_of(total)) for name, kind, cost in counted)
    shares = {kind: cost.share_of(total) for kind, cost in kinds.items()}
    return ModelCost(
        model=model,
        example=example,
        images=images,
        layers=tuple(layers),
        kinds=shares,
        whole=total,
        variables=tuple(variables),
        divided=divided,
    )


def needed_memory(spec: TrainSpec, cost: ModelCost) -> NeededMemory:
    """That of a spec whose model costs so much for one example."""
    with user_code.on_path(spec.code):  # where only the optimizer's class knows how much it keeps
        states = len(spec.optimizer.build().state_names)
    trained, number = sum(cost.variables), 2 if spec.precision in ("bfloat16", "float16") else 4
    activities = cost.whole.activities
    if spec.algorithm.traits.divides_examples:
        divided = sum(layer.cost.activities for layer in cost.layers if layer.kind == "convolution")
        activities -= divided * (spec.workers.count - 1) // spec.workers.count
    frozen = max(0, cost.whole.parameters - trained)
    return NeededMemory(
        vectors=vector_bytes(spec, states, trained, cost.divided) + FLOAT_BYTES * frozen,
        held=held_by_a_worker(spec),
        activations=number * activities * spec.batch.per_worker,
    )


class TimingPlan(Figures):
    """What is timed, and where (paper 2, section 3.2)."""

    batches: tuple[PositiveInt, ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 128), min_length=1)
    """Batch sizes of the convolution."""
    sizes: tuple[PositiveInt, ...] = Field(default=(256, 512, 1024, 2048, 4096, 8192), min_length=1)
    """n of the fully connected layer's n x n matrix."""
    repeats: int = Field(default=10, ge=1)
    device: Device = "auto"
    """`auto`: the CPU and one GPU of each available kind."""
    threads: int | None = Field(default=None, ge=1)
    """Threads of torch on the CPU; null: torch's default."""


class PassTiming(Figures):
    """The time of one forward pass, over all repeats."""

    size: int
    """Images, or n of an n x n matrix."""
    mean_s: float
    spread_s: float
    """Standard deviation."""


class FittedLine(Figures):
    """A straight line through the mean times, by least squares."""

    slope_s: float
    """Seconds per image, or seconds per element of the matrix."""
    intercept_s: float
    r2: float
    """Fraction of the variance that the line explains."""


class TimingCurve(Figures):
    """One layer on one device."""

    layer: LayerName
    device: str
    """`cpu`, `cuda:0`."""
    hardware: str
    """The manufacturer's name of the device."""
    timings: tuple[PassTiming, ...]
    line: FittedLine | None
    """Over the batch size, or over n squared; null for a single size."""


class Ratio(Figures):
    """How many times as long the CPU takes as a GPU."""

    layer: LayerName
    device: str
    """The GPU."""
    by_size: dict[int, float]
    slopes: float | None
    """Ratio of the slopes of the two lines."""


class Timings(Figures):
    """The result of a timing plan."""

    plan: TimingPlan
    threads: int
    """Threads of torch on the CPU."""
    curves: tuple[TimingCurve, ...]
    ratios: tuple[Ratio, ...]
    """Empty unless both the CPU and a GPU were timed."""


def work(layer: LayerName, size: float) -> float:
    """What the time of a layer should be proportional to: images, or elements of the matrix (paper 2, section 3.2)."""
    return size if layer == "convolution" else size**2


def slope_words(layer: LayerName, slope_s: float) -> str:
    """A slope in the unit that fits its layer."""
    if layer == "convolution":
        return f"{1000 * slope_s:.3g} ms an image"
    return f"{1e9 * slope_s:.3g} ns a number of the matrix"


def ratios(curves: tuple[TimingCurve, ...]) -> tuple[Ratio, ...]:
    """The time on the CPU divided by that on a GPU, for each layer and each GPU."""
    on_cpu = {curve.layer: curve for curve in curves if curve.device == "cpu"}
    return tuple(_ratio(on_cpu[curve.layer], curve) for curve in curves if curve.device != "cpu" and on_cpu)


def _ratio(cpu: TimingCurve, gpu: TimingCurve) -> Ratio:
    pairs = zip(cpu.timings, gpu.timings, strict=True)
    return Ratio(
        layer=gpu.layer,
        device=gpu.device,
        by_size={slow.size: slow.mean_s / fast.mean_s for slow, fast in pairs},
        slopes=cpu.line.slope_s / gpu.line.slope_s if cpu.line and gpu.line and gpu.line.slope_s else None,
    )
