"""What the actors of a run tell each other: small, frozen, free of torch. Tensors travel beside them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """Where an actor lives."""

    name: str
    node_id: str
    node_ip: str
    pid: int


@dataclass(frozen=True)
class Prepared:
    """What the coordinator must know of the model and the data, which it does not load itself."""

    place: Place
    num_examples: int
    minibatches: int
    """Minibatches an epoch."""
    steps: int
    """Synchronous steps an epoch."""
    numel: int
    """P, elements of the flat parameter vector."""
    shards: tuple[tuple[int, int], ...]
    """The spans of the shards in it."""
    device: str
    position: dict[str, object]
    """Where the run begins, a `Position` as a dict."""
    exempt: tuple[tuple[int, int], ...] = ()
    """The spans of the flat vector without weight decay."""


@dataclass(frozen=True)
class Exchange:
    """How the workers of a generation reach each other, and the shards."""

    transport: str
    """`shared_memory` or `process_group`."""
    folder: str
    """The generation's folder, inside the run's folder on each node; among process groups, the name."""
    rank: int
    size: int
    address: tuple[str, int] | None = None
    """Of the rendezvous store, for process groups."""
    generation: int = 0
    group: "Exchange | None" = None
    """How the workers of a group reach each other, where the algorithm has both groups and shards."""


@dataclass(frozen=True)
class Tally:
    """What a worker did since its last report."""

    rank: int
    steps: int
    examples: int
    loss: float
    """Sum over the examples."""
    learning_rate: float
    wait_data_s: float
    wait_communication_s: float
    compute_s: float
    by_epoch: dict[int, tuple[float, int]]
    """Epoch -> sum of the loss, examples."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many pushes were acknowledged at which staleness."""
    applied: tuple[tuple[int, int, int], ...] = ()
    """Epoch, first and last minibatch of the pushes that every shard has acknowledged."""
