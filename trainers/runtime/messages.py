"""What the actors of a run tell each other: small, frozen, free of torch. Tensors travel beside them."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """Where an actor lives."""

    name: str
    node_id: str
    node_ip: str
    pid: int
    actor_id: str = ""
    """Ray's own, by which its dashboard knows it."""


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
    groups: tuple[tuple[int, int], ...] = ()
    """The spans of the groups of parameters that are pushed and fetched by themselves; none: the vector is one."""


@dataclass(frozen=True)
class Exchange:
    """How the workers of a generation reach each other, and the shards."""

    transport: str
    """`shared_memory`, `process_group`, or `composed` of both; to the shards also `object_store`."""
    folder: str
    """The generation's folder, inside the run's folder on each node; among process groups, the name; for the object
    store what the names of all shards begin with."""
    rank: int
    """Of this worker."""
    size: int
    address: tuple[str, int] | None = None
    """Of the rendezvous store, for process groups."""
    generation: int = 0
    nodes: tuple[int, ...] = ()
    """The number of the node on which each of the workers is; empty: all are on one."""


@dataclass(frozen=True)
class CopyPlace:
    """Where a second copy of a shard is."""

    place: Place
    folder: str
    """Of its files, as in an `Exchange`."""
    address: tuple[str, int]
    """Where it listens to the shard that serves."""
    token: int
    """What only that one knows."""


@dataclass(frozen=True)
class Standing:
    """What a shard tells a coordinator that takes over."""

    exchange: Exchange
    """As it was given it when it began to serve."""
    reign: int
    """By which its coordinator knew it when it last gave it a second copy."""


@dataclass(frozen=True)
class Begin:
    """Where one worker begins a generation."""

    number: int
    """The worker's, which nobody had before it."""
    exchange: Exchange
    position: dict[str, object] | None = None
    """A `Position`; null: where the spec begins, which each worker finds by itself."""
    root: int | None = None
    """The rank of the worker that has the newest version, from which the others get it."""
    states: tuple[str, ...] = ()
    """The names of the vectors in that version beside the parameters."""
    seat: Exchange | None = None
    """How this worker reaches the shards, if it does; its rank is a number that nobody had before it."""
    resume: str | None = None
    """The checkpoint to begin from instead of the spec's, where no version is left in anybody's memory."""
    num_virtual: int = 0
    """Virtual workers of a synchronous run while this generation lasts; 0: as in the spec."""
    term: int = 0
    """How many coordinators of the run had died before this was said: a worker that has answered a later one begins
    nothing that an earlier one said before it died."""


@dataclass(frozen=True)
class Ended:
    """How a generation ended for one worker."""

    number: int
    """The worker's."""
    position: dict[str, object]
    """A `Position`: of the newest version that is whole here."""
    lost: str = ""
    """Who was missed, in a sentence; empty where the generation ended as it should."""
    has_version: bool = False
    """Whether a version is held from which others can go on."""
    states: tuple[str, ...] = ()
    """The names of the vectors in it beside the parameters."""


@dataclass(frozen=True)
class Resigned:
    """What a worker tells a coordinator that takes over."""

    prepared: Prepared
    ended: Ended | None
    """How its last generation ended; none where it had none."""
    generation: int
    seat: int
    """The last it had at the shards; -1 where it had none."""


@dataclass(frozen=True)
class Tally:
    """What a worker did since its last report."""

    number: int
    """The worker's."""
    generation: int
    """In which it was done."""
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
    sent_bytes: int = 0
    """Of vectors, to other workers and to shards."""
    received_bytes: int = 0
    pushed_bytes: int = 0
    """Of `sent_bytes`, those to shards."""
    fetched_bytes: int = 0
    """Of `received_bytes`, those from shards."""
    fetches: int = 0
    """From shards."""
    wait_fetch_s: float = 0.0
    pushes: int = 0
    wait_push_s: float = 0.0
    dropped: int = 0
    """Minibatches whose gradients came too late for their step."""
    updates: int = 0
    """That the first shard had made when it last acknowledged a push, since the start of the run."""
    shuffled_bytes: int = 0
    """Of those sent: training examples."""
    crossed_bytes: int = 0
    """Of those sent: to workers on other nodes."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many pushes were acknowledged at which staleness."""
    group_staleness: tuple[dict[int, int], ...] = ()
    """Likewise in each group of parameters, where there are several."""
    delays: tuple[int, ...] = ()
    """Of the last step's `StepReport`."""
    reached: int = 0
    """Examples in the newest version, of all workers since the beginning; for synchronous algorithms."""
    applied: tuple[tuple[int, int, int], ...] = ()
    """Epoch, first and last minibatch of the pushes that every shard has acknowledged."""
