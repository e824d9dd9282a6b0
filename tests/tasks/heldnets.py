"""A model of the house that a test may hold at a minibatch."""

from typing import Any

from torch import Tensor, nn

from tests.faults.code.faulty import Looks
from trainers.models.networks.gpt import Gpt


class Held(Looks):
    """A GPT that looks before each minibatch whether its worker may go on."""

    def __init__(self, plan: str, net: nn.Module) -> None:
        super().__init__(plan, pause_s=0.0)
        self.net = net

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.net(self.look(tokens))
        return logits


def gpt(vocabulary: int, context: int, plan: str, **kwargs: Any) -> nn.Module:
    return Held(plan, Gpt(vocabulary, context, **kwargs))
