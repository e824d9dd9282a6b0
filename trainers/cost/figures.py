"""What is counted and what is timed, as plain numbers. Imports no torch, so that a command line can show them."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from trainers.data.names import IMAGES
from trainers.spec import DataSpec, Device, ModelSpec

Kind = Literal["convolution", "fully connected", "attention", "normalisation", "other"]
LayerName = Literal["convolution", "fully_connected"]


class Figures(BaseModel):
    """Root of them all: frozen, its fields documented."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Images(Figures):
    """What a model is given and what it tells apart."""

    shape: tuple[int, int, int]
    """C, H, W."""
    classes: int


def images_of(model: ModelSpec, data: DataSpec | None = None) -> Images | None:
    """The images of a set that is known by name; without a set, those that a model by name is usually given.

    None where only reading the set would tell.
    """
    if data is None:
        small = IMAGES["mnist"] if model.name in ("lenet5", "convnet", "mlp") else IMAGES["imagenet"]
        return Images(shape=small[:3], classes=small[3])
    if data.name not in IMAGES:
        return None
    channels, height, width, classes = IMAGES[data.name]
    side = data.random_resized_crop
    return Images(shape=(channels, side or height, side or width), classes=classes)


class Share(Figures):
    """A part of the whole model, 0 to 1."""

    computation: float
    """Of the FLOPs, forward and backward."""
    parameters: float
    activities: float


class Cost(Figures):
    """What a part of a model takes for one image."""

    forward_flops: int = 0
    """Multiplications and additions of convolutions and matrix products; whatever else a layer does is left out."""
    backward_flops: int = 0
    """Likewise, for the gradients with respect to the weights and, but for the first layer, to the layer's input."""
    parameters: int = 0
    activities: int = 0
    """Numbers that it puts out."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in Cost.model_fields})

    def share_of(self, whole: "Cost") -> Share:
        """Its part of `whole`; 0 of nothing."""
        return Share(
            computation=(self.forward_flops + self.backward_flops) / max(1, whole.forward_flops + whole.backward_flops),
            parameters=self.parameters / max(1, whole.parameters),
            activities=self.activities / max(1, whole.activities),
        )


class LayerCost(Figures):
    """One layer of a model."""

    name: str
    """As in `named_modules`; what lies in no layer is the model's own, without a name."""
    kind: Kind
    cost: Cost
    share: Share


class ModelCost(Figures):
    """A model, layer by layer in the order in which they are first called, and by kinds of layer."""

    model: str
    images: Images
    layers: tuple[LayerCost, ...]
    kinds: dict[Kind, Share]
    """Of all layers of a kind together (paper 1, section 3)."""
    whole: Cost


def model_cost(model: str, images: Images, counted: list[tuple[str, Kind, Cost]]) -> ModelCost:
    """The layers with their shares."""
    whole, kinds = Cost(), dict[Kind, Cost]()
    for _, kind, cost in counted:
        whole, kinds[kind] = whole + cost, kinds.get(kind, Cost()) + cost
    layers = (LayerCost(name=name, kind=kind, cost=cost, share=cost.share_of(whole)) for name, kind, cost in counted)
    shares = {kind: cost.share_of(whole) for kind, cost in kinds.items()}
    return ModelCost(model=model, images=images, layers=tuple(layers), kinds=shares, whole=whole)


class TimingPlan(Figures):
    """What is timed, and where (paper 2, section 3.2)."""

    batches: tuple[PositiveInt, ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 128), min_length=1)
    """Images that go through the convolution at once."""
    sizes: tuple[PositiveInt, ...] = Field(default=(256, 512, 1024, 2048, 4096, 8192), min_length=1)
    """n of the fully connected layer's n x n matrix."""
    repeats: int = Field(default=10, ge=1)
    device: Device = "auto"
    """`auto`: the CPU and every kind of GPU that is there."""
    threads: int | None = Field(default=None, ge=1)
    """Of torch on the CPU; none: as many as it takes by itself."""


class Timing(Figures):
    """One forward pass, over all repeats."""

    size: int
    """Images, or n of an n x n matrix."""
    mean_s: float
    spread_s: float
    """Standard deviation."""


class Line(Figures):
    """A straight line through means, by least squares."""

    slope_s: float
    """Seconds an image, or seconds a number of the matrix."""
    intercept_s: float
    r2: float
    """Share of the variance that the line explains."""


class Curve(Figures):
    """One layer on one device."""

    layer: LayerName
    device: str
    """`cpu`, `cuda:0`."""
    hardware: str
    """Its maker's name for it."""
    timings: tuple[Timing, ...]
    line: Line | None
    """Over the images, or over n squared; none through a single size."""


class Ratio(Figures):
    """How many times longer the CPU takes than a GPU."""

    layer: LayerName
    device: str
    """The GPU."""
    by_size: dict[int, float]
    slopes: float | None
    """Of the two slopes."""


class Timings(Figures):
    """All that was timed."""

    plan: TimingPlan
    threads: int
    """Of torch on the CPU."""
    curves: tuple[Curve, ...]
    ratios: tuple[Ratio, ...]
    """Empty where there is no GPU, or no CPU beside it."""


def work(layer: LayerName, size: float) -> float:
    """What the time of a layer should be proportional to: images, or numbers of the matrix (paper 2, section 3.2)."""
    return size if layer == "convolution" else size**2


def slope_words(layer: LayerName, slope_s: float) -> str:
    """A slope in the unit that fits its layer."""
    if layer == "convolution":
        return f"{1000 * slope_s:.3g} ms an image"
    return f"{1e9 * slope_s:.3g} ns a number of the matrix"


def ratios(curves: tuple[Curve, ...]) -> tuple[Ratio, ...]:
    """CPU over GPU, for each layer and each GPU."""
    on_cpu = {curve.layer: curve for curve in curves if curve.device == "cpu"}
    return tuple(_ratio(on_cpu[curve.layer], curve) for curve in curves if curve.device != "cpu" and on_cpu)


def _ratio(cpu: Curve, gpu: Curve) -> Ratio:
    pairs = zip(cpu.timings, gpu.timings, strict=True)
    return Ratio(
        layer=gpu.layer,
        device=gpu.device,
        by_size={slow.size: slow.mean_s / fast.mean_s for slow, fast in pairs},
        slopes=cpu.line.slope_s / gpu.line.slope_s if cpu.line and gpu.line and gpu.line.slope_s else None,
    )
