"""What the vectors of a model take of a worker's memory and of its links, as far as a spec alone says it. Imports no
torch."""

from trainers.algorithms.divided import Divided
from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.collectives.reduction import Reduction
from trainers.collectives.reduction_tree import depth
from trainers.links.names import WireName
from trainers.spec.train import TrainSpec

FLOAT_BYTES = 4


def bytes_a_parameter(spec: TrainSpec) -> int | None:
    """The least that a worker takes for each trained parameter of the model; None where the optimizer's class decides.

    Parameters and gradient are float32. Workers of one node share parameters and optimizer state, unless each virtual
    worker has its own; with a parameter server the state is in the shards. Where all layers are divided it is for each
    parameter of the worker's part, and where some are for each of the others; `vector_bytes` counts both.
    """
    has_state = spec.algorithm.traits.outer is not None or not spec.algorithm.traits.uses_parameter_server
    return None if has_state and spec.optimizer.num_states is None else bytes_with(spec, spec.optimizer.num_states or 0)


def bytes_with(spec: TrainSpec, vectors: int) -> int:
    """The same where the optimizer keeps so many vectors."""
    traits = spec.algorithm.traits
    if traits.outer is not None:
        return FLOAT_BYTES * (1 + vectors + 1 + traits.common_vectors)
    if traits.uses_parameter_server:
        return FLOAT_BYTES * 2 + _kept(spec)
    if _divides_all(spec):
        return _of_part(spec, vectors)
    own = FLOAT_BYTES * num_versions(spec) * (1 + vectors + (spec.ema is not None))
    return _gradients(spec) + _kept(spec) + FLOAT_BYTES * traits.common_vectors + _replicas(spec) * own


def vector_bytes(spec: TrainSpec, vectors: int, parameters: int, divided: Divided | None) -> int:
    """The same for all trained parameters of a model, of which workers may share out some."""
    if divided is None:
        return bytes_with(spec, vectors) * parameters
    part = _of_part(spec, vectors) * divided.most + FLOAT_BYTES * divided.built
    return bytes_with(spec, vectors) * (parameters - divided.whole) + part


def num_versions(spec: TrainSpec) -> int:
    """Of parameters and optimizer state: an update is written beside the version that others may be reading. Nobody
    reads those of one virtual worker, nor of one that gets all gradients compressed."""
    return 1 if spec.algorithm.traits.own_replicas or spec.compress is not None else 2


def state_bytes(spec: TrainSpec) -> int | None:
    """What is kept for each trained parameter beside it, the average with it, in all its versions; None where the
    optimizer's class decides."""
    vectors = states_of_versions(spec)
    return None if vectors is None else FLOAT_BYTES * num_versions(spec) * (vectors + (spec.ema is not None))


def states_of_versions(spec: TrainSpec) -> int | None:
    """Vectors that belong to a version beside the parameters and their average: of the optimizer, with what late
    gradients ask for, or of the rule by which shards apply what workers changed; None where the optimizer's class
    decides."""
    vectors, traits = spec.optimizer.num_states, spec.algorithm.traits
    if traits.outer is not None:
        return traits.outer.num_states(traits.num_pushers(spec.workers.count))
    return None if vectors is None else vectors + traits.late_states


def gradient_bytes(spec: TrainSpec, wire: WireName) -> int:
    """What all workers of a synchronous run send together for each element of their gradients, if it is for others."""
    workers = spec.workers
    reduction = Reduction(workers.num_virtual, workers.count, numel=0, wire=wire)
    return sum(reduction.num_bytes(rank) for rank in range(workers.count))


def sum_bytes(spec: TrainSpec) -> tuple[float, float] | None:
    """What all workers of a synchronous run send each other for each element of a sum over the virtual workers and of
    what comes back, where they share no memory: compressed, and not. None where the shapes of the model decide."""
    workers = spec.workers
    others = workers.count - 1
    plain = others * (gradient_bytes(spec, "float32") / workers.count + FLOAT_BYTES)
    each = None if spec.compress is None else spec.compress.bytes_an_element
    return None if each is None else (others * workers.num_virtual * each, plain)


def held_by_a_worker(spec: TrainSpec) -> str:
    """Which vectors that is."""
    traits, replicas = spec.algorithm.traits, _replicas(spec)
    if traits.outer is not None:
        return f"parameters and optimizer state of its own, gradient, and {traits.common_vectors} more vectors"
    kept = "" if spec.compress is None else ", and what is kept back of what it sends"
    if traits.uses_parameter_server:
        return f"parameters and gradient{kept}"
    if _divides_all(spec):
        return "parameters and optimizer state of its part, its gradient, and all parameters as they were built"
    if not traits.own_replicas:
        if isinstance(spec.algorithm, HybridConfig):
            kept = " (of the fully connected layers its part), and these layers as they were built"
        versions = "two versions of parameters" if spec.compress is None else "parameters"
        return f"{versions} and optimizer state, gradients{kept}"
    own = f"parameters and optimizer state of {replicas} virtual worker{'s' if replicas > 1 else ''}"
    more = f", and {traits.common_vectors} more vectors" if traits.common_vectors else ""
    return f"{own}, gradient{more}{kept}"


def _gradients(spec: TrainSpec) -> int:
    """The gradients of a worker, for each parameter: where they are added in the canonical order, the sums that the
    worker with most of them ships, what it adds them up in, and the sum of all where no memory is shared and so each
    worker updates all parameters."""
    workers, sends = spec.workers, spec.algorithm.traits.sends_gradients
    if spec.compress is not None or not (sends or isinstance(spec.algorithm, HybridConfig)):
        return FLOAT_BYTES
    reduction = Reduction(workers.num_virtual, workers.count, numel=0, wire=spec.wire)

    def taken(rank: int) -> int:
        nodes = reduction.nodes(rank)
        scratch = max(depth(node) - (reduction.wire_of(node) == "float32") for node in nodes)
        return reduction.num_bytes(rank) + FLOAT_BYTES * scratch

    gathered = FLOAT_BYTES * (sends and spec.transport == "process_group" and workers.count > 1)
    return gathered + max(taken(rank) for rank in range(workers.count))


def _divides_all(spec: TrainSpec) -> bool:
    """Whether each worker has only a part of every layer."""
    return isinstance(spec.algorithm, HybridConfig) and spec.algorithm.columns is not None


def _of_part(spec: TrainSpec, vectors: int) -> int:
    """What a worker takes for each parameter of its part of divided layers: one gradient, and a second version where it
    lies in memory that outlives the worker, so that others can go on from it."""
    versions = 1 if spec.transport == "process_group" else 2
    return FLOAT_BYTES * (versions * (1 + vectors + (spec.ema is not None)) + 1)


def _kept(spec: TrainSpec) -> int:
    """Where what is sent is compressed, what a worker keeps of it for each parameter. Of a sum also what each of its
    virtual workers adds to that, what the sum is made in, and, if only that asks for it, where a round began."""
    if spec.compress is None:
        return 0
    if spec.algorithm.traits.uses_parameter_server:
        return FLOAT_BYTES
    begun = isinstance(spec.algorithm, ParallelSgdConfig)
    return FLOAT_BYTES * (2 * _most_virtual(spec) + depth((0, spec.workers.num_virtual)) + begun)


def _replicas(spec: TrainSpec) -> int:
    """Of parameters and optimizer state, at most, on one worker."""
    return _most_virtual(spec) if spec.algorithm.traits.own_replicas else 1


def _most_virtual(spec: TrainSpec) -> int:
    """Virtual workers of the worker that has most."""
    return -(-spec.workers.num_virtual // spec.workers.count)
