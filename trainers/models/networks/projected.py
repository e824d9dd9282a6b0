"""A fully connected layer that sees most of the layer below through small linear projections (paper 1, section 8)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation


class Projection(nn.Module):
    """P_k h_k of every block k of the inputs, one beside the other: (B, inputs) to (B, g r)."""

    def __init__(self, inputs: int, blocks: int, rank: int) -> None:
        """Each P_k begins with the first r rows of the identity."""
        super().__init__()
        self.blocks = blocks
        self.weight = nn.Parameter(torch.eye(rank, inputs // blocks).repeat(blocks, 1))
        """(g r, inputs / g): the P_k, one below the other."""

    def forward(self, x: Tensor) -> Tensor:
        pairs = zip(x.chunk(self.blocks, -1), self.weight.chunk(self.blocks), strict=True)
        return torch.cat([F.linear(units, weight) for units, weight in pairs], -1)


class Projected(nn.Module):
    """z_b = W_b [P_0 h_0, ..., h_b, ..., P_{g-1} h_{g-1}] + c_b, for each of g blocks b of the outputs.

    A block sees the inputs h_b of its own block whole, and those of every other block k through r linear combinations
    P_k h_k of them, which are learned. With r = inputs / g and the identity as P_k it is a whole layer, and its weight
    is that layer's.
    """

    def __init__(self, whole: nn.Linear, blocks: int, rank: int, as_built: bool) -> None:
        """
        Args:
            whole: the layer that it takes the place of, whose widths g divides. It begins with the weights of that
                which it has a place for.
            blocks: g.
            rank: r, at most inputs / g.
            as_built: whether these weights are initial ones. They then become larger by the root of inputs / (inputs
                seen), so that a sum over fewer inputs begins with the variance of the whole layer's.
        """
        super().__init__()
        self.in_features, self.out_features, self.blocks = whole.in_features, whole.out_features, blocks
        rows = []
        for index, row in enumerate(whole.weight.detach().chunk(blocks)):
            parts = enumerate(row.chunk(blocks, 1))
            rows.append(torch.cat([part if k == index else part[:, :rank] for k, part in parts], 1))
        weight = torch.cat(rows)
        self.weight = nn.Parameter(weight * (self.in_features / weight.shape[1]) ** 0.5 if as_built else weight)
        """(outputs, inputs / g + (g - 1) r)."""
        self.bias = whole.bias
        self.projection = Projection(self.in_features, blocks, rank)

    def forward(self, x: Tensor) -> Tensor:
        sent = self.projection(x).chunk(self.blocks, -1)
        found = []
        for b, (own, weight) in enumerate(zip(x.chunk(self.blocks, -1), self.weight.chunk(self.blocks), strict=True)):
            found.append(F.linear(torch.cat([*sent[:b], own, *sent[b + 1 :]], -1), weight))
        z = torch.cat(found, -1)
        return z if self.bias is None else z + self.bias
