"""A model of a table's rows: `tabular`."""

import torch
from torch import Tensor, nn


class Tabular(nn.Module):
    """Numbers and codes of categories, (B, F) float32, to (B, outputs): each code becomes a vector that is learned
    (Guo and Berkhahn 2016, "Entity embeddings of categorical variables"), as wide as fastai's rule has it, and hidden
    layers with ReLU follow.
    """

    def __init__(
        self, num_classes: int, columns: tuple[int, ...], hidden: int = 128, layers: int = 2, dropout: float = 0.0
    ) -> None:
        """columns: how many of F are numbers, which come first, and for each category how many codes there are."""
        super().__init__()
        self.num_numbers, *sizes = columns
        widths = [min(600, round(1.6 * size**0.56)) for size in sizes]
        self.embeddings = nn.ModuleList(nn.Embedding(*pair) for pair in zip(sizes, widths, strict=True))
        width = self.num_numbers + sum(widths)
        self.hidden = nn.ModuleList(nn.Linear(hidden if i else width, hidden) for i in range(layers))
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(hidden if layers else width, num_classes)

    def forward(self, rows: Tensor) -> Tensor:
        numbers, codes = rows[:, : self.num_numbers], rows[:, self.num_numbers :].long()
        x = torch.cat([numbers, *(embed(codes[:, i]) for i, embed in enumerate(self.embeddings))], dim=1)
        for layer in self.hidden:
            x = self.drop(torch.relu(layer(x)))
        outputs: Tensor = self.out(x)
        return outputs
