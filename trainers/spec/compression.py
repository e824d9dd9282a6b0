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
    value = compress.name if compress.top_k is None else f"{compress.name} {compress.top_k:g}"
    return {"compress": Quantity(value=value, formula=formula, source=compress.source)}


def _sent(spec: TrainSpec) -> str:
    """How many bytes travel for each element of what is compressed."""
    assert spec.compress is not None
    if spec.algorithm.traits.is_synchronous:
        found, plain = sum_bytes(spec)
        return f"{found:.3g} bytes an element of a sum among {spec.workers.count} workers, {plain:.3g} uncompressed"
    each = f"{spec.compress.bytes_an_element:.3g} bytes an element of each push"
    return f"{each}, 4 where shards of the node read it in place"
