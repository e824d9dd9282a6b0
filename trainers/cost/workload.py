"""What a spec gives a worker to do, counted: the layers, the variables, and how long they take. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from trainers.cost.clusters.cluster import DescribedDevice
from trainers.cost.figures import Figures
from trainers.spec import TrainSpec
from trainers.spec.memory import states_of_versions

FLOAT_BYTES = 4


class LayerWork(Figures):
    """One layer, for one example."""

    name: str
    parameters: int
    """That are trained."""
    forward_flops: int
    backward_flops: int


class LayerSeconds(Figures):
    """What a layer takes of a worker's minibatch, with whatever has no parameters up to the next one."""

    forward_s: float = Field(ge=0)
    backward_s: float = Field(ge=0)


class HeadLayer(Figures):
    """A fully connected layer that `hybrid` divides among the workers."""

    inputs: int
    outputs: int
    name: str = ""
    """As in `layers`; empty: not told."""


class RowWork(Figures):
    """A convolution or a pooling of which `spatial` divides the rows among the workers."""

    kernel: int
    stride: int
    padding: int
    dilation: int
    height: int
    """Rows of its input."""
    width: int
    """Elements of one of them, in all channels."""


class Workload(Figures):
    """A model on its data."""

    model: str
    example: str
    """What an example is, in words."""
    layers: tuple[LayerWork, ...]
    """In the order in which a forward pass calls them."""
    variables: tuple[int, ...]
    """Elements of each trained variable, in the model's order."""
    head: tuple[HeadLayer, ...] = ()
    """The layers that `hybrid` divides; empty for the other algorithms."""
    head_exchanged: int = 0
    """Activities and their gradients of one example that workers exchange between the layers of the head."""
    head_exchanges: int = 0
    """In so many exchanges, each way."""
    pixels: int = 0
    """Numbers of an image, where `hybrid` divides columns too, and the workers send each other images."""
    columns_met: int = 0
    """Likewise, activities of one example that workers send each other where columns meet."""
    columns_meet: int = 0
    """In so many places."""
    row_layers: tuple[RowWork, ...] = ()
    """The layers whose rows `spatial` divides; empty for the other algorithms."""
    row_flops: int = 0
    """Of one example in these layers, forward and backward."""
    row_activities: int = 0
    """Of `activities`, those of these layers."""
    image: int = 0
    """Elements of an image of which each worker gets rows."""
    maps: int = 0
    """Elements of what comes out of these layers for one example."""
    num_states: int = 0
    """Vectors of the optimizer's state."""
    activities: int = 0
    """Elements that all layers put out for one example."""
    row_names: tuple[str, ...] = ()
    """Of the layers, as in `layers`, whose rows are divided."""
    seconds: dict[str, LayerSeconds] = Field(default_factory=dict)
    """What each layer takes, as it was timed; empty: FLOPs tell how the passes divide among the layers."""
    rows: dict[int, float] = Field(default_factory=dict)
    """Of the passes, what the layers whose rows are divided take on each of so many workers, as it was timed."""

    @property
    def parameters(self) -> int:
        """Trained parameters."""
        return sum(self.variables)

    @property
    def num_bytes(self) -> int:
        """Of a vector of all trained parameters in float32."""
        return FLOAT_BYTES * self.parameters

    @property
    def forward_flops(self) -> int:
        """Of one example."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> int:
        """Of one example."""
        return sum(layer.backward_flops for layer in self.layers)

    @property
    def head_share(self) -> float:
        """Of the passes, those of the head; 0 to 1."""
        timed = self._timed_share([layer.name for layer in self.head])
        head = sum(2 * 3 * layer.inputs * layer.outputs for layer in self.head)
        return head / max(1, self.forward_flops + self.backward_flops) if timed is None else timed

    @property
    def row_share(self) -> float:
        """Of the passes, those of the layers whose rows are divided; 0 to 1."""
        timed = self._timed_share(self.row_names)
        return self.row_flops / max(1, self.forward_flops + self.backward_flops) if timed is None else timed

    @property
    def forward_shares(self) -> tuple[float, ...]:
        """Of the forward pass, what each of `layers` takes."""
        timed = [each.forward_s for each in self._timed]
        return _shares(timed or [float(layer.forward_flops) for layer in self.layers])

    @property
    def backward_shares(self) -> tuple[float, ...]:
        """Of the backward pass, what each of `layers` takes."""
        timed = [each.backward_s for each in self._timed]
        return _shares(timed or [float(layer.backward_flops) for layer in self.layers])

    @property
    def _timed(self) -> list[LayerSeconds]:
        """What each of `layers` takes; empty unless all of them were timed."""
        return [self.seconds[layer.name] for layer in self.layers] if self._is_timed else []

    @property
    def _is_timed(self) -> bool:
        """Whether all layers that compute anything were timed."""
        return bool(self.seconds) and all(layer.name in self.seconds for layer in self.layers)

    def _timed_share(self, names: Sequence[str]) -> float | None:
        """Of the passes, what these layers take; None where it was not timed."""
        if not names or not self._is_timed or not set(names) <= self.seconds.keys():
            return None
        whole = sum(each.forward_s + each.backward_s for each in self.seconds.values())
        found = sum(self.seconds[name].forward_s + self.seconds[name].backward_s for name in names)
        return found / whole if whole else None

    @property
    def head_parameters(self) -> int:
        """Those of the head's matrices."""
        return sum(layer.inputs * layer.outputs for layer in self.head)

    @property
    def between(self) -> tuple[HeadLayer, ...]:
        """The layers of the head between the first and the last, whose connectivity may be restricted."""
        return self.head[1:-1]

    def left_out(self, blocks: int, rank: int = 0) -> int:
        """Parameters that the head lacks where the layers between are restricted to so many blocks, of the others of
        which they see projections of this rank."""
        kept = ((x.inputs // blocks + (blocks - 1) * rank) * x.outputs + rank * x.inputs for x in self.between)
        return sum(layer.inputs * layer.outputs for layer in self.between) - sum(kept)


def _shares(taken: Sequence[float]) -> tuple[float, ...]:
    whole = sum(taken) or 1.0
    return tuple(each / whole for each in taken)


@dataclass(frozen=True)
class Pace:
    """How long a worker that nobody disturbs takes."""

    forward_s: float
    """Of one minibatch of n examples."""
    backward_s: float
    update_s: float
    """Of all parameters once."""
    data_s: float = 0.0
    """Waited for a minibatch's examples."""
    spread: float = 0.0
    """Standard deviation of a minibatch's time, as a share of its mean."""
    copy_s: float = 0.0
    """Of a copy of all parameters in a worker's memory."""
    in_place_s: float | None = None
    """Of all parameters once where they lie; None: as `update_s`."""

    @property
    def own_update_s(self) -> float:
        """Of what a worker has for itself. What others may be reading is written anew beside it, which takes longer."""
        return self.update_s if self.in_place_s is None else self.in_place_s

    @property
    def passes_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


def num_states_of(spec: TrainSpec) -> int:
    """Vectors that an update reads and writes beside the parameters; 0 where the optimizer's class decides."""
    return states_of_versions(spec) or 0


def pace_of(device: DescribedDevice, work: Workload, per_worker: int) -> Pace:
    """What a described device takes for a minibatch, from counted FLOPs and, for an update, the bytes that it moves.

    An update reads and writes the parameters and each vector of the state, and reads the gradient.

    Raises:
        ValueError: The device does not say what it reaches.
    """
    if device.flops is None:
        raise ValueError(f"/device/flops: {device.name} does not say what it reaches; give it, or a profile of it")
    moved = (3 + 2 * work.num_states) * work.num_bytes
    return Pace(
        forward_s=per_worker * work.forward_flops / device.flops,
        backward_s=per_worker * work.backward_flops / device.flops,
        update_s=moved / device.memory_bandwidth if device.memory_bandwidth else 0.0,
    )
