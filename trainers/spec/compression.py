"""What of a spec's sums and pushes travels where it is compressed, for `explain`. Imports no torch."""

from trainers.algorithms.parallel_sgd.config import ParallelSgdConfig
from trainers.spec.memory import states_of_versions, sum_bytes
from trainers.spec.quantity import Quantity
from trainers.spec.train import TrainSpec


def compressed(spec: TrainSpec) -> dict[str, Quantity]:
    """What of a gradient travels, and how many bytes for each of its elements, where it is compressed."""
    compress = spec.compress
    if compress is None:
        return {}
    formula = f"{compress.formula}; {_sent(spec)}"
    return {"compress": Quantity(value=compress.value, formula=formula, source=compress.source)}


def _sent(spec: TrainSpec) -> str:
    """How many bytes travel for each element of what is compressed."""
    assert spec.compress is not None
    if spec.compress.powersgd is not None:
        low = "each worker sends each other r (n + m) numbers of n m, and vectors and small matrices whole, in float32"
        return low + _beside(spec)
    if (both := sum_bytes(spec)) and spec.algorithm.traits.is_synchronous:
        found, plain = both
        among = f"a sum among {spec.workers.count} workers"
        return f"{found:.3g} bytes an element of {among}, {plain:.3g} uncompressed{_beside(spec)}"
    each = spec.compress.bytes_an_element
    return f"{each:.3g} bytes an element of each push, 4 where a node's shards read it in place"


def _beside(spec: TrainSpec) -> str:
    """What else is averaged, and not compressed."""
    whole = averaged_whole(spec)
    return f"; {whole} averaged too, uncompressed" if whole else ""


def averaged_whole(spec: TrainSpec) -> str:
    """Where optimizer states are averaged beside the parameters, of which alone less than all travels: how many vectors
    these are, and the verb; else nothing."""
    if not isinstance(spec.algorithm, ParallelSgdConfig):
        return ""
    states = states_of_versions(spec)
    if states is None:
        return "the optimizer's vectors are"
    states += spec.ema is not None
    return (
        f"{states} vector{'s' if states > 1 else ''} of the optimizer {'are' if states > 1 else 'is'}" if states else ""
    )
