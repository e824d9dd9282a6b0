"""Response normalisation within the columns of a network."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation


class ColumnNorm(nn.LocalResponseNorm):
    """Over adjacent maps of the same column (Krizhevsky et al. 2012, section 3.3): n = 5, k = 2, beta = 0.75, alpha =
    1e-4, which torch divides by n."""

    def __init__(self, width: int) -> None:
        """width: maps of a column. What passes may have any number of whole columns, one after the other."""
        super().__init__(5, alpha=5e-4, beta=0.75, k=2.0)
        self.width = width

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """(B, columns * width, H, W) to the same."""
        columns = torch.split(maps, self.width, 1)
        normalised = [F.local_response_norm(c, self.size, self.alpha, self.beta, self.k) for c in columns]
        return normalised[0] if len(normalised) == 1 else torch.cat(normalised, 1)
