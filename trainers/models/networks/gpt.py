"""A small GPT: a decoder of transformer blocks over tokens."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # torch's own abbreviation


class Gpt(nn.Module):
    """Tokens (B, T) int64 to logits (B, T, vocabulary), after Radford et al. 2019 ("Language models are unsupervised
    multitask learners"): layer norm before each part of a block, learned positions, GELU, weights from a Gaussian of
    0.02, those into the residual stream from 0.02 / sqrt(2 layers). The last layer shares its weights with the tokens'
    embedding; none of the layers has a bias, nor have the layer norms.
    """

    def __init__(
        self, vocabulary: int, context: int, layers: int = 4, heads: int = 4, width: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"a width of {width} cannot be divided among {heads} heads; take a multiple of it")
        self.context = context
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if length > self.context:
            raise ValueError(f"{length} tokens are more than the context of {self.context}")
        x = self.drop(self.tokens(tokens) + self.positions.weight[:length])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


class Block(nn.Module):
    """Causal attention, then two fully connected layers, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.attention = nn.LayerNorm(width, bias=False), Attention(width, heads, dropout)
        self.before_mlp = nn.LayerNorm(width, bias=False)
        self.expand, self.out = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        forward: Tensor = self.drop(self.out(F.gelu(self.expand(self.before_mlp(x)))))
        return x + forward


class Attention(nn.Module):
    """Each token looks at itself and the ones before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.parts, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.parts(x).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        seen = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed: Tensor = self.drop(self.out(seen.transpose(1, 2).reshape(rows, length, width)))
        return mixed


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        torch.nn.init.zeros_(module.bias)
