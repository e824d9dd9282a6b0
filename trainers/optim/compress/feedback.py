"""Error feedback: what is not sent is kept, and added next time.

Sources: Seide et al. 2014, "1-bit stochastic gradient descent"; Stich et al. 2018, "Sparsified SGD with memory";
Karimireddy et al. 2019, "Error feedback fixes SignSGD and other gradient compression schemes".
"""

from torch import Tensor

from trainers.optim.compress.compressor import Compressor


class ErrorFeedback:
    """The memory e of one worker. For each of its vectors g, where C compresses:

    p <- g + e;  C(p) is sent;  e <- p - C(p)

    The sum of all that was sent and of what is kept is the sum of the vectors.
    """

    def __init__(self, compressor: Compressor, kept: Tensor, gaps: Tensor) -> None:
        """kept: e, (P,), in memory that changes with each vector. gaps: (P,) of bool, where no parameter lies."""
        self.compressor, self.kept, self.gaps = compressor, kept, gaps

    def send(self, vector: Tensor, part: slice) -> Tensor:
        """Take the `part` of a vector (P,), and leave there what of it is sent. Returns the message."""
        wanted, kept = vector[part], self.kept[part]
        kept += wanted
        message = self.compressor.message(kept)
        self.compressor.decode(message, wanted)
        wanted.masked_fill_(self.gaps[part], 0)
        kept -= wanted
        return message
