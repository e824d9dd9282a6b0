"""What of a gradient a recipe sends, and in how many bytes."""

from trainers.spec.memory import sum_bytes
from trainers.spec.quantity import Quantity
from trainers.spec.train import TrainSpec


def compression(spec: TrainSpec) -> dict[str, Quantity]:
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
        return "each worker sends each other r (n + m) numbers of n m, and vectors and small matrices whole, in float32"
    if (both := sum_bytes(spec)) and spec.algorithm.traits.is_synchronous:
        found, plain = both
        return f"{found:.3g} bytes an element of a sum among {spec.workers.count} workers, {plain:.3g} uncompressed"
    each = f"{spec.compress.bytes_an_element:.3g} bytes an element of each push"
    return f"{each}, 4 where shards of the node read it in place"
