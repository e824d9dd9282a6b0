"""The model."""

import torch
from torch import Tensor, nn


class MyModel(nn.Module):
    """Each token is told from itself and those before it, by one block of a transformer."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.block = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True
        )
        self.logits = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) to (B, T, vocabulary)."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        x = self.tokens(tokens) + self.places.weight[:length]
        logits: Tensor = self.logits(self.block(x, src_mask=later))
        return logits


def my_model(vocabulary: int, context: int, width: int = 48) -> nn.Module:
    """Takes tokens (B, T), gives logits (B, T, vocabulary) of the next ones.

    `vocabulary` and `context`, T, come from the data, and `width` from `model.kwargs` of the spec. Weights may be drawn
    from torch's generator, which is seeded from the spec.
    """
    return MyModel(vocabulary, context, width)
