"""What a worker's training loop is told when a generation begins, and what it tells: small, frozen, free of torch."""

from dataclasses import dataclass

from trainers.collectives.endpoints import CollectivesEndpoint
from trainers.metrics import StepMetrics
from trainers.models.products.choice import UNMEASURED, Choice
from trainers.optim.parameter import Parameter
from trainers.parameter_server.endpoints import StoreEndpoint
from trainers.training.position import Position


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """What must be known of a run's model and data by whoever does not load them: the coordinator and the shards."""

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
    """Where the worker that tells this computes: `cpu`, or the GPU by what is its own in the world."""
    position: Position
    """Where the run begins."""
    exempt: tuple[tuple[int, int], ...] = ()
    """The spans of the flat vector without weight decay."""
    parameter_groups: tuple[tuple[tuple[int, int], ...], ...] = ()
    """The spans of each of `optimizer.groups`."""
    parameters: tuple[Parameter, ...] = ()
    """All parameters, where they are updated as wholes."""
    groups: tuple[tuple[int, int], ...] = ()
    """The spans of the groups of parameters that are pushed and fetched by themselves; none: the vector is one."""
    damaged: tuple[str, ...] = ()
    """What is wrong with the checkpoints that the run was to begin from, before the one that it does begin from."""
    chance_loss: float = 0.0
    """The mean loss of guessing; 0: not known."""
    data: tuple[str, ...] = ()
    """What the data are, in sentences without their ends."""
    weights: str = ""
    """What `model.weights` lacked or had too much, in a sentence without its end; empty where the run does not begin
    with them, or all fitted."""
    has_validation: bool = False
    """Whether a validation set is evaluated while it trains, and the test set only at the end."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Training rows that were left out when the data were opened, and what is wrong with each."""
    compiled_s: float = 0.0
    """What the first minibatch took, with which the model was compiled; 0: it was not."""
    slow: str = ""
    """What the device of the worker that tells this computes slowly, in a sentence without its end."""
    headline: str = "loss"
    """The metric of the task by which runs are compared."""
    higher_is_better: bool = False
    """Of that."""
    products: Choice = UNMEASURED
    """Which library makes which product of the fully connected layers; that of worker 0 counts for all."""
    other_processor: str = ""
    """That on which the products of the checkpoint were measured that the run begins from, where it is not this one."""


@dataclass(frozen=True)
class GenerationStart:
    """Where one worker begins a generation."""

    number: int
    """The worker's, which no worker had before it."""
    endpoint: CollectivesEndpoint
    """How it reaches the other workers."""
    position: Position | None = None
    """None: where the spec begins, which each worker finds by itself."""
    root: int | None = None
    """The rank of the worker that has the newest version, from which the others get it."""
    states: tuple[str, ...] = ()
    """The names of the vectors in that version beside the parameters."""
    store: StoreEndpoint | None = None
    """How it reaches the shards, if it does."""
    resume: str | None = None
    """The checkpoint to begin from instead of the spec's, where no version is left in any worker's memory."""
    num_virtual: int = 0
    """Virtual workers of a synchronous run while this generation lasts; 0: as in the spec."""
    products: Choice = UNMEASURED
    """Which library makes which product of the fully connected layers."""
    cpus: tuple[int, ...] = ()
    """The logical CPUs to which its training thread keeps; none: it runs on any."""
    incarnation: int = 0
    """How many coordinators of the run had died before this one sent this. A worker that has answered a later
    coordinator refuses what an earlier one had sent before it died."""


@dataclass(frozen=True)
class GenerationEnd:
    """How a generation ended for one worker."""

    number: int
    """The worker's."""
    position: Position
    """Of the newest complete version that this worker has."""
    lost: str = ""
    """Which peer was lost, in a sentence; empty where the generation ended as it should."""
    has_version: bool = False
    """Whether this worker holds a version from which others can go on."""
    states: tuple[str, ...] = ()
    """The names of the vectors in it beside the parameters."""


@dataclass(frozen=True)
class Traced:
    """How far a worker is that records some of its steps."""

    steps: int
    """Recorded so far; once it is over, those in the trace."""
    is_over: bool
    file: bytes = b""
    """The Chrome trace, compressed with gzip, once it is over; empty where there is none."""
    why: str = ""
    """Why it was over before all steps were recorded, in a sentence without its end."""


@dataclass(frozen=True)
class WorkerReport:
    """What a worker did since its last report."""

    number: int
    """The worker's."""
    generation: int
    """In which it was done."""
    metrics: StepMetrics
    learning_rate: float = 0.0
    """Of the last step."""
    seconds: float = 0.0
    """That it took to do all of this."""
    loss_scale: float = 0.0
    """Of the next step; 0 where losses are not scaled."""
    delays: tuple[int, ...] = ()
    """Of the last step's `StepReport`."""
    updates: int = 0
    """That the first shard had made when it last acknowledged a push, since the start of the run; of a synchronous run,
    steps."""
    reached: int = 0
    """Examples in the newest version, of all workers since the beginning; for synchronous algorithms."""
    skipped: tuple[tuple[int, str], ...] = ()
    """Training examples that could not be read, and what is wrong with each."""
    peak_bytes: tuple[int, int] = (0, 0)
    """The most memory that the worker's process has had by the end of its first step in a generation, resident and on a
    GPU; in its first report."""
    applied: tuple[tuple[int, int, int], ...] = ()
    """Epoch, first and last minibatch of the pushes that every shard has acknowledged."""
