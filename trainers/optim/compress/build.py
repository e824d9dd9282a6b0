"""From the section of a spec to what compresses."""

from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.config import CompressSpec
from trainers.optim.compress.int8 import Int8
from trainers.optim.compress.sign import Sign
from trainers.optim.compress.top_k import TopK


def compressor_of(spec: CompressSpec | None) -> Compressor | None:
    """What compresses as a spec says; None where it does not."""
    if spec is None:
        return None
    if spec.top_k is not None:
        return TopK(spec.top_k)
    return Sign() if spec.sign else Int8()
