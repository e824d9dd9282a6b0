"""What the vectors of a model take of a worker's memory and of its links, as far as a spec alone says it. Imports no
torch."""

from trainers.collectives.reduction import Reduction
from trainers.links.names import WireName
from trainers.spec.train import TrainSpec


def bytes_a_parameter(spec: TrainSpec) -> int | None:
    """The least that a worker takes for each parameter of the model; None where the optimizer's class decides.

    Parameters and gradient are float32. Workers of one node share parameters and optimizer state, unless each virtual
    worker has its own; with a parameter server the state is in the shards.
    """
    traits, vectors = spec.algorithm.traits, spec.optimizer.num_states
    if traits.uses_parameter_server:
        return 4 * 2
    if vectors is None:
        return None
    return 4 * (1 + traits.common_vectors + _replicas(spec) * (1 + vectors + (spec.ema is not None)))


def gradient_bytes(spec: TrainSpec, wire: WireName) -> int:
    """What all workers of a synchronous run send together for each element of their gradients, if it is for others."""
    workers = spec.workers
    reduction = Reduction(workers.num_virtual, workers.count, numel=0, wire=wire)
    return sum(reduction.num_bytes(rank) for rank in range(workers.count))


def held_by_a_worker(spec: TrainSpec) -> str:
    """Which vectors that is."""
    traits, replicas = spec.algorithm.traits, _replicas(spec)
    if traits.uses_parameter_server:
        return "parameters and gradient"
    if replicas == 1 and not traits.common_vectors:
        return "parameters, gradient and optimizer state"
    own = f"parameters and optimizer state of {replicas} virtual worker{'s' if replicas > 1 else ''}"
    return f"{own}, gradient" + (f", and {traits.common_vectors} more vectors" if traits.common_vectors else "")


def _replicas(spec: TrainSpec) -> int:
    """Of parameters and optimizer state, at most, on one worker."""
    workers = spec.workers
    return -(-workers.num_virtual // workers.count) if spec.algorithm.traits.own_replicas else 1
